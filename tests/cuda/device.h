#pragma once

#include <gtest/gtest.h>

#include "cases/memory.h"
#include "cases/tensors.h"
#include "thalweg/backend.h"
#include "thalweg/device_memory.h"
#include "thalweg/operation.h"

namespace thalweg {

inline Stream cuda_stream() { return {{DeviceType::kCuda, 0}, 0, nullptr}; }

// Tests that need a device; skipped, with the reason, where there is none.
class OnDevice : public testing::Test {
 protected:
  void SetUp() override {
    for (const BackendInfo& info : backends()) {
      if (info.type == DeviceType::kCuda && !info.available) GTEST_SKIP() << info.reason;
    }
  }
};

// Runs the arguments where they lie in `memory`, and leaves the outputs there.
template <class Args>
void run_on_device(Args args, cases::Memory& memory) {
  const Stream stream = cuda_stream();
  memory.upload(stream);
  cases::visit_tensors(args, [&](auto& tensor) {
    if (tensor.defined()) tensor = memory.on_device(tensor, stream.device);
  });
  const DeviceMemory workspace(stream.device, workspace_size(args, stream));
  run(args, workspace.workspace(), stream);
  synchronize(stream);
  memory.download(stream);
  EXPECT_EQ(memory.check(), "");
}

}  // namespace thalweg
