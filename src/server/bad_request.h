#pragma once

#include <stdexcept>
#include <string>
#include <utility>

namespace thalweg::server {

// A request that is answered with an error of this status.
class BadRequest : public std::runtime_error {
 public:
  explicit BadRequest(const std::string& message, std::string parameter = {}, int status = 400)
      : std::runtime_error(message), parameter_(std::move(parameter)), status_(status) {}
  const std::string& parameter() const { return parameter_; }
  int status() const { return status_; }

 private:
  std::string parameter_;
  int status_;
};

}  // namespace thalweg::server
