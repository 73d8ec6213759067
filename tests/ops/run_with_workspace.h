#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "thalweg/operation.h"

namespace thalweg {

// Runs an operation on the CPU with a workspace of exactly the size it asks for.
template <class Args>
void run_with_workspace(const Args& args, int threads = 0) {
  const Stream stream = Stream::cpu(threads);
  const std::size_t bytes = workspace_size(args, stream);
  std::vector<unsigned char> memory(bytes + kWorkspaceAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  const std::size_t shift = (kWorkspaceAlignment - address % kWorkspaceAlignment) % kWorkspaceAlignment;
  run(args, Workspace{memory.data() + shift, bytes}, stream);
}

}  // namespace thalweg
