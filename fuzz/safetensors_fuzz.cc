// Any bytes as a safetensors file: refused with thalweg::Error, or read into a header whose tensors lie within the
// bytes. The same bytes are read as JSON too, the way config.json and an index are.

#include <cstdint>

#include "allocations.h"
#include "io/json_file.h"
#include "io/safetensors.h"
#include "thalweg/error.h"

namespace thalweg::io {
namespace {

void check(bool holds) {
  if (!holds) __builtin_trap();
}

void read_tensors(Bytes bytes) {
  const SafetensorsHeader header = parse_safetensors(bytes, "input");
  unsigned sum = 0;
  for (const SafetensorsTensor& tensor : header.tensors) {
    check(tensor.offset <= bytes.size() && tensor.bytes <= bytes.size() - tensor.offset);
    const auto* data = reinterpret_cast<const std::uint8_t*>(bytes.data()) + tensor.offset;
    for (std::uint64_t i = 0; i < tensor.bytes; ++i) sum += data[i];
    if (!tensor.dtype || tensor.shape.size() > static_cast<std::size_t>(kMaxRank)) continue;
    const ConstTensor view = contiguous_view(data, *tensor.dtype, tensor.shape);
    check(static_cast<std::uint64_t>(bytes_of(view.dtype, view.size())) == tensor.bytes);
  }
  [[maybe_unused]] volatile unsigned keep = sum;
}

void read_json(Bytes bytes) {
  const JsonObject object = JsonObject::parse({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, "input");
  for (const std::string& key : object.keys()) {
    const auto attempt = [&](auto&& call) {
      try {
        static_cast<void>(call());
      } catch (const Error&) {
        // Of another type.
      }
    };
    attempt([&] { return object.integer(key); });
    attempt([&] { return object.number(key); });
    attempt([&] { return object.boolean(key); });
    attempt([&] { return object.string(key).size(); });
    attempt([&] { return object.integers(key).size(); });
    attempt([&] { return object.strings(key).size(); });
    attempt([&] { return object.object(key).keys().size(); });
  }
}

}  // namespace
}  // namespace thalweg::io

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const thalweg::AllocationLimit limit(size);
  const thalweg::io::Bytes bytes = std::as_bytes(std::span(data, size));
  for (const auto& read : {thalweg::io::read_tensors, thalweg::io::read_json}) {
    try {
      read(bytes);
    } catch (const thalweg::Error&) {
      // Refused.
    }
  }
  return 0;
}
