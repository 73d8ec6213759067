#pragma once

#include <gtest/gtest.h>

#include "cases/memory.h"
#include "cases/tensors.h"
#include "thalweg/device_memory.h"
#include "thalweg/operation.h"

namespace thalweg {

// Runs an operation whose tensors lie in `memory`, on the host or by copies on the stream's device, and leaves the
// outputs there.
template <class Args>
void run_in_memory(Args args, cases::Memory& memory, const Stream& stream) {
  if (stream.device.type == DeviceType::kCpu) {
    HostWorkspace scratch;
    run(args, scratch.reserve(workspace_size(args, stream)), stream);
  } else {
    memory.upload(stream);
    cases::visit_tensors(args, [&](auto& tensor) {
      if (tensor.defined()) tensor = memory.on_device(tensor, stream.device);
    });
    const DeviceMemory workspace(stream.device, workspace_size(args, stream));
    run(args, workspace.workspace(), stream);
    synchronize(stream);
    memory.download(stream);
  }
  EXPECT_EQ(memory.check(), "");
}

}  // namespace thalweg
