#pragma once

namespace thalweg::metal {

// Makes the executor the Metal backend. Does nothing in a build without the executor or with Metal.
void attach_executor();

}  // namespace thalweg::metal
