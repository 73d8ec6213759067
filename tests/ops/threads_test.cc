// The cases of these tests are small: all threads take part in them nevertheless, so that races would show.

#include "core/threads.h"

#include <gtest/gtest.h>

namespace thalweg {
namespace {

class EveryTaskIsWorthAThread : public ::testing::Environment {
 public:
  void SetUp() override { min_thread_ns = 0.0; }  // NOLINT(readability-identifier-naming)
};

[[maybe_unused]] const auto* const kEnvironment = ::testing::AddGlobalTestEnvironment(new EveryTaskIsWorthAThread);

}  // namespace
}  // namespace thalweg
