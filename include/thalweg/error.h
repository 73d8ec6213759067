#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

#include "thalweg/api.h"

THALWEG_API_BEGIN
namespace thalweg {

// The one exception type of the library. It is thrown before anything is written: an operation that throws
// leaves its outputs, state pools and workspace unchanged. It is thrown on the calling thread.
class Error : public std::runtime_error {
 public:
  Error(std::string_view operation, std::string_view argument, std::string_view expected, std::string_view given)
      : std::runtime_error(compose(operation, argument, expected, given)),
        operation_(operation),
        argument_(argument),
        expected_(expected) {}

  const std::string& operation() const noexcept { return operation_; }
  const std::string& argument() const noexcept { return argument_; }
  const std::string& expected() const noexcept { return expected_; }

 private:
  static std::string compose(std::string_view operation, std::string_view argument, std::string_view expected,
                             std::string_view given) {
    std::string message(operation);
    message.append(": ").append(argument).append(": expected ").append(expected).append(", got ").append(given);
    return message;
  }

  std::string operation_;
  std::string argument_;
  std::string expected_;
};

}  // namespace thalweg
THALWEG_API_END
