#pragma once

namespace thalweg::metal {

// Makes the executor the Metal backend, in a build that has it; does nothing in one that has not, or that has Metal.
void attach_executor();

}  // namespace thalweg::metal
