#pragma once

#include "thalweg/operation.h"

namespace thalweg {

// Runs an operation on the CPU with a workspace of exactly the required size.
template <class Args>
void run_with_workspace(const Args& args, int threads = 0) {
  const Stream stream = Stream::cpu(threads);
  HostWorkspace scratch;
  run(args, scratch.reserve(workspace_size(args, stream)), stream);
}

}  // namespace thalweg
