// Any bytes as the body of /v1/messages.

#include <cstddef>
#include <cstdint>

#include "chat_body.h"
#include "server/anthropic.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  thalweg::server::read_body({reinterpret_cast<const char*>(data), size}, thalweg::server::read_message);
  return 0;
}
