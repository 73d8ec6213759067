// Any bytes as the body of /v1/responses.

#include <cstddef>
#include <cstdint>

#include "chat_body.h"
#include "server/responses.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  thalweg::server::read_body({reinterpret_cast<const char*>(data), size}, thalweg::server::read_response);
  return 0;
}
