// Formats with one scale, and perhaps a minimum, for each block of 32 weights.

#include "quant/unpack.h"

namespace thalweg {
namespace {

// value(code, w) for the 32 weights of a block whose codes are nibbles, in order.
template <class Value>
void for_each_nibble(const std::array<std::uint8_t, 16>& codes, float* values, Value&& value) {
  for (int i = 0; i < 16; ++i) values[i] = value(codes[static_cast<std::size_t>(i)] & 15, i);
  for (int i = 0; i < 16; ++i) values[16 + i] = value(codes[static_cast<std::size_t>(i)] >> 4, 16 + i);
}

std::uint32_t high_bits(const std::array<std::uint8_t, 4>& high) {
  return high[0] | static_cast<std::uint32_t>(high[1]) << 8 | static_cast<std::uint32_t>(high[2]) << 16 |
         static_cast<std::uint32_t>(high[3]) << 24;
}

void unpack_block(const BlockQ4_0& block, float* values) {
  const float scale = block.scale.f32();
  for_each_nibble(block.codes, values, [=](int code, int) { return scale * static_cast<float>(code - 8); });
}

void unpack_block(const BlockQ4_1& block, float* values) {
  const float scale = block.scale.f32();
  const float minimum = block.minimum.f32();
  for_each_nibble(block.codes, values, [=](int code, int) { return scale * static_cast<float>(code) + minimum; });
}

void unpack_block(const BlockQ5_0& block, float* values) {
  const float scale = block.scale.f32();
  const std::uint32_t high = high_bits(block.high);
  for_each_nibble(block.codes, values, [=](int code, int w) {
    return scale * static_cast<float>((code | static_cast<int>(high >> w & 1U) << 4) - 16);
  });
}

void unpack_block(const BlockQ5_1& block, float* values) {
  const float scale = block.scale.f32();
  const float minimum = block.minimum.f32();
  const std::uint32_t high = high_bits(block.high);
  for_each_nibble(block.codes, values, [=](int code, int w) {
    return scale * static_cast<float>(code | static_cast<int>(high >> w & 1U) << 4) + minimum;
  });
}

void unpack_block(const BlockQ8_0& block, float* values) {
  const float scale = block.scale.f32();
  for (std::size_t i = 0; i < 32; ++i) values[i] = scale * static_cast<float>(block.codes[i]);
}

}  // namespace

template <class Block>
void unpack_blocks(const Block* from, std::int64_t blocks, float* values) {
  for (std::int64_t b = 0; b < blocks; ++b) unpack_block(from[b], values + 32 * b);
}

template void unpack_blocks(const BlockQ4_0*, std::int64_t, float*);
template void unpack_blocks(const BlockQ4_1*, std::int64_t, float*);
template void unpack_blocks(const BlockQ5_0*, std::int64_t, float*);
template void unpack_blocks(const BlockQ5_1*, std::int64_t, float*);
template void unpack_blocks(const BlockQ8_0*, std::int64_t, float*);

}  // namespace thalweg
