// Any bytes as a GGUF file: refused with thalweg::Error, or read into a header whose tensors lie within the bytes.

#include <cstdint>

#include "allocations.h"
#include "io/gguf.h"
#include "thalweg/error.h"

namespace thalweg::io {
namespace {

void check(bool holds) {
  if (!holds) __builtin_trap();
}

void ask(const GgufMetadata& metadata, const std::string& key) {
  const auto attempt = [&](auto&& call) {
    try {
      static_cast<void>(call());
    } catch (const Error&) {
      // Of another type.
    }
  };
  attempt([&] { return metadata.integer(key); });
  attempt([&] { return metadata.number(key); });
  attempt([&] { return metadata.boolean(key); });
  attempt([&] { return metadata.string(key).size(); });
  attempt([&] { return metadata.integers(key).size(); });
  attempt([&] { return metadata.numbers(key).size(); });
  attempt([&] { return metadata.booleans(key).size(); });
  attempt([&] { return metadata.strings(key).size(); });
}

void read(Bytes bytes) {
  const GgufHeader header = parse_gguf(bytes, "input");
  for (const auto& entry : header.metadata.entries()) ask(header.metadata, entry.first);
  unsigned sum = 0;
  for (const GgufTensor& tensor : header.tensors) {
    check(tensor.offset <= bytes.size() && tensor.bytes <= bytes.size() - tensor.offset);
    if (!tensor.type.dtype) continue;
    const ConstTensor view = contiguous_view(bytes.data() + tensor.offset, *tensor.type.dtype, tensor.shape);
    check(static_cast<std::uint64_t>(bytes_of(view.dtype, view.size())) == tensor.bytes);
    const auto* data = static_cast<const std::uint8_t*>(view.data);
    for (std::uint64_t i = 0; i < tensor.bytes; ++i) sum += data[i];
  }
  [[maybe_unused]] volatile unsigned keep = sum;
}

}  // namespace
}  // namespace thalweg::io

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const thalweg::AllocationLimit limit(size);
  try {
    thalweg::io::read(std::as_bytes(std::span(data, size)));
  } catch (const thalweg::Error&) {
    // Refused.
  }
  return 0;
}
