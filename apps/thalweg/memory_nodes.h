#pragma once

namespace thalweg::app {

// Pages that this process touches first from now on come from all memory nodes that it may use, in turn: also those of
// files that are not in the page cache yet. For machines whose processors have memory of their own. Call it before
// threads start, since they inherit it. Throws where the system has no such policy.
void interleave_memory();

}  // namespace thalweg::app
