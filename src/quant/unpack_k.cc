// The K formats: super-blocks of 256 weights in groups of 16 or 32.

#include "quant/unpack.h"

namespace thalweg {
namespace {

// values[i] = value(code(i)) for a group of N. The codes are copied first: for all the compiler knows, a block's bytes
// alias `values`, and it would not vectorize.
template <int N, class Code, class Value>
void unpack_group(float* values, Code&& code, Value&& value) {
  std::array<std::uint8_t, N> codes;
  for (int i = 0; i < N; ++i) codes[static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(code(i));
  for (int i = 0; i < N; ++i) values[i] = value(static_cast<int>(codes[static_cast<std::size_t>(i)]));
}

void unpack_block(const BlockQ2_K& block, float* values) {
  const float scale = block.scale.f32();
  const float minimum = block.minimum.f32();
  for (std::size_t g = 0; g < 16; ++g) {
    const float group_scale = scale * static_cast<float>(block.groups[g] & 15);
    const float group_minimum = minimum * static_cast<float>(block.groups[g] >> 4);
    const std::uint8_t* codes = block.codes.data() + 32 * (g / 8) + 16 * (g % 2);
    const int shift = 2 * static_cast<int>(g / 2 % 4);
    unpack_group<16>(
        values + 16 * g, [=](int i) { return codes[i] >> shift & 3; },
        [=](int code) { return group_scale * static_cast<float>(code) - group_minimum; });
  }
}

void unpack_block(const BlockQ3_K& block, float* values) {
  const float scale = block.scale.f32();
  for (int g = 0; g < 16; ++g) {
    const float group_scale = scale * static_cast<float>(q3_group_scale(block.groups, g) - 32);
    const std::uint8_t* codes = block.codes.data() + 32 * (g / 8) + 16 * (g % 2);
    const std::uint8_t* high = block.high.data() + 16 * (g % 2);
    const int shift = 2 * (g / 2 % 4);
    const int high_shift = g / 2;
    unpack_group<16>(
        values + 16 * g, [=](int i) { return (codes[i] >> shift & 3) | (high[i] >> high_shift & 1) << 2; },
        [=](int code) { return group_scale * static_cast<float>(code - 4); });
  }
}

void unpack_block(const BlockQ4_K& block, float* values) {
  const float scale = block.scale.f32();
  const float minimum = block.minimum.f32();
  for (int g = 0; g < 8; ++g) {
    const GroupScale group = q45_group(block.groups, g);
    const float group_scale = scale * static_cast<float>(group.scale);
    const float group_minimum = minimum * static_cast<float>(group.minimum);
    const std::uint8_t* codes = block.codes.data() + 32 * (g / 2);
    const int shift = 4 * (g % 2);
    unpack_group<32>(
        values + 32 * g, [=](int i) { return codes[i] >> shift & 15; },
        [=](int code) { return group_scale * static_cast<float>(code) - group_minimum; });
  }
}

void unpack_block(const BlockQ5_K& block, float* values) {
  const float scale = block.scale.f32();
  const float minimum = block.minimum.f32();
  for (int g = 0; g < 8; ++g) {
    const GroupScale group = q45_group(block.groups, g);
    const float group_scale = scale * static_cast<float>(group.scale);
    const float group_minimum = minimum * static_cast<float>(group.minimum);
    const std::uint8_t* codes = block.codes.data() + 32 * (g / 2);
    const int shift = 4 * (g % 2);
    const std::uint8_t* high = block.high.data();
    unpack_group<32>(
        values + 32 * g, [=](int i) { return (codes[i] >> shift & 15) | (high[i] >> g & 1) << 4; },
        [=](int code) { return group_scale * static_cast<float>(code) - group_minimum; });
  }
}

void unpack_block(const BlockQ6_K& block, float* values) {
  const float scale = block.scale.f32();
  for (std::size_t g = 0; g < 16; ++g) {
    const float group_scale = scale * static_cast<float>(block.groups[g]);
    const std::uint8_t* codes = block.codes.data() + 64 * (g / 8) + 16 * (g % 4);
    const std::uint8_t* high = block.high.data() + 32 * (g / 8) + 16 * (g % 2);
    const int shift = 4 * static_cast<int>(g / 4 % 2);
    const int high_shift = 2 * static_cast<int>(g / 2 % 4);
    unpack_group<16>(
        values + 16 * g, [=](int i) { return (codes[i] >> shift & 15) | (high[i] >> high_shift & 3) << 4; },
        [=](int code) { return group_scale * static_cast<float>(code - 32); });
  }
}

}  // namespace

template <class Block>
void unpack_blocks(const Block* from, std::int64_t blocks, float* values) {
  for (std::int64_t b = 0; b < blocks; ++b) unpack_block(from[b], values + 256 * b);
}

template void unpack_blocks(const BlockQ2_K*, std::int64_t, float*);
template void unpack_blocks(const BlockQ3_K*, std::int64_t, float*);
template void unpack_blocks(const BlockQ4_K*, std::int64_t, float*);
template void unpack_blocks(const BlockQ5_K*, std::int64_t, float*);
template void unpack_blocks(const BlockQ6_K*, std::int64_t, float*);

}  // namespace thalweg
