// Any bytes as a session file: refused with thalweg::Error and the slot unchanged, or read into the slot. The checksum
// rejects almost every input, so each is tried a second time with the right one appended.

#include <cstdint>
#include <cstring>
#include <string>

#include "allocations.h"
#include "decode/checksum.h"
#include "decode/session.h"
#include "thalweg/error.h"

namespace thalweg::decode {
namespace {

constexpr std::uint64_t kModel = 0x1234;
constexpr std::int64_t kVocabulary = 11;

void check(bool holds) {
  if (!holds) __builtin_trap();
}

ModelConfig small_config() {
  ModelConfig config;
  config.layers = {LayerKind::kGatedDelta, LayerKind::kAttention};
  config.vocabulary = kVocabulary;
  config.heads = config.kv_heads = 1;
  config.head_dim = 16;
  config.key_heads = config.value_heads = 1;
  config.key_dim = config.value_dim = 16;
  config.conv_width = 4;
  return config;
}

std::uint64_t sum_of(const StatePool& pool, int slot) {
  Checksum sum;
  for (std::span<std::byte> span : pool.slot_memory(slot, pool.length(slot))) sum.add(span);
  return sum.value();
}

void restore(io::Bytes bytes) {
  static StatePool pool(small_config(), 1, 64, DType::kF16);
  const std::int64_t length = pool.length(0);
  const std::uint64_t before = sum_of(pool, 0);
  try {
    const SessionText text = restore_session(bytes, "input", kModel, kVocabulary, pool, 0);
    check(static_cast<std::int64_t>(text.tokens.size()) == pool.length(0));
    check(text.logits.empty() == text.tokens.empty());
    for (std::int32_t token : text.tokens) check(token >= 0 && token < kVocabulary);
  } catch (const Error&) {
    check(pool.length(0) == length && sum_of(pool, 0) == before);
  }
}

}  // namespace
}  // namespace thalweg::decode

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const thalweg::AllocationLimit limit(size);
  const auto bytes = std::as_bytes(std::span(data, size));
  thalweg::decode::restore(bytes);
  thalweg::decode::Checksum sum;
  sum.add(bytes);
  const std::uint64_t value = sum.value();
  std::string complete(reinterpret_cast<const char*>(data), size);
  complete.append(reinterpret_cast<const char*>(&value), sizeof(value));
  thalweg::decode::restore(std::as_bytes(std::span(complete.data(), complete.size())));
  return 0;
}
