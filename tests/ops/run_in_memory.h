#pragma once

#include <gtest/gtest.h>

#include <string>

#include "cases/memory.h"
#include "cases/tensors.h"
#include "thalweg/device_memory.h"
#include "thalweg/operation.h"

namespace thalweg {

// Runs an operation whose tensors lie in `memory`, on the host or by copies on the stream's device, and leaves the
// outputs there. Returns the name of the kernel.
template <class Args>
std::string run_in_memory(Args args, cases::Memory& memory, const Stream& stream) {
  std::string kernel;
  const auto run_and_name = [&](Workspace workspace) {
    const Explanation explanation = explain(args, stream);
    kernel = explanation.kernels.at(static_cast<std::size_t>(explanation.chosen)).kernel;
    run(args, workspace, stream);
  };
  if (stream.device.type == DeviceType::kCpu) {
    HostWorkspace scratch;
    run_and_name(scratch.reserve(workspace_size(args, stream)));
  } else {
    memory.upload(stream);
    cases::visit_tensors(args, [&](auto& tensor) {
      if (tensor.defined()) tensor = memory.on_device(tensor, stream.device);
    });
    const DeviceMemory workspace(stream.device, workspace_size(args, stream));
    run_and_name(workspace.workspace());
    synchronize(stream);
    memory.download(stream);
  }
  EXPECT_EQ(memory.check(), "");
  return kernel;
}

}  // namespace thalweg
