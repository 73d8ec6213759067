#pragma once

#include "core/kernel.h"

namespace thalweg {

// All that run() does before the kernel starts: validates the arguments and the workspace, and plans. For the benchmark
// of a call's overhead. Throws thalweg::Error.
template <class Args>
Plan<Args> plan_call(const Args& args, Workspace workspace, const Stream& stream);

}  // namespace thalweg
