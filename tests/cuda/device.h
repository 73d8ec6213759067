#pragma once

#include <gtest/gtest.h>

#include "cases/memory.h"
#include "ops/run_in_memory.h"
#include "thalweg/backend.h"

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
void run_on_device(const Args& args, cases::Memory& memory) {
  run_in_memory(args, memory, cuda_stream());
}

}  // namespace thalweg
