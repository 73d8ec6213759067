#pragma once

#include <gtest/gtest.h>

#include "thalweg/backend.h"
#include "thalweg/device_memory.h"

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

}  // namespace thalweg
