#pragma once

#include <gtest/gtest.h>

#include <string_view>

#include "thalweg/error.h"

namespace thalweg::text {

// run() throws an Error about that argument.
template <typename Run>
void expect_error(std::string_view argument, Run run) {
  try {
    run();
    ADD_FAILURE() << "no error about " << argument;
  } catch (const Error& error) {
    EXPECT_EQ(error.argument(), argument) << error.what();
  }
}

}  // namespace thalweg::text
