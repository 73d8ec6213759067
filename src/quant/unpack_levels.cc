// Formats whose 4-bit codes name a level of a table: IQ4_NL, IQ4_XS and MXFP4.

#include <bit>

#include "quant/unpack.h"

namespace thalweg {
namespace {

template <class T>
constexpr std::array<float, 16> as_floats(const std::array<T, 16>& levels) {
  std::array<float, 16> result{};
  for (std::size_t i = 0; i < 16; ++i) result[i] = static_cast<float>(levels[i]);
  return result;
}

constexpr std::array<float, 16> kIq4Floats = as_floats(kIq4Levels);
constexpr std::array<float, 16> kMxfp4Floats = as_floats(kMxfp4Levels);

void unpack_levels(const std::array<float, 16>& levels, float scale, const std::uint8_t* codes, float* values) {
  // The products first: a block has more weights than there are levels.
  std::array<float, 16> scaled{};
  for (std::size_t i = 0; i < 16; ++i) scaled[i] = scale * levels[i];
  for (std::size_t i = 0; i < 16; ++i) {
    values[i] = scaled[codes[i] & 15U];
    values[16 + i] = scaled[codes[i] >> 4];
  }
}

// 2^(exponent - 128), exact: subnormal below exponent 2.
float half_of_e8m0(std::uint8_t exponent) {
  const std::uint32_t bits = exponent < 2 ? 0x200000U << exponent : (exponent - 1U) << 23;
  return std::bit_cast<float>(bits);
}

void unpack_block(const BlockIQ4_NL& block, float* values) {
  unpack_levels(kIq4Floats, block.scale.f32(), block.codes.data(), values);
}

void unpack_block(const BlockMXFP4& block, float* values) {
  unpack_levels(kMxfp4Floats, half_of_e8m0(block.exponent), block.codes.data(), values);
}

void unpack_block(const BlockIQ4_XS& block, float* values) {
  const float scale = block.scale.f32();
  for (int g = 0; g < 8; ++g) {
    const float group_scale = scale * static_cast<float>(iq4_xs_group_scale(block, g) - 32);
    unpack_levels(kIq4Floats, group_scale, block.codes.data() + 16 * g, values + 32 * g);
  }
}

}  // namespace

template <class Block>
void unpack_blocks(const Block* from, std::int64_t blocks, float* values) {
  constexpr int kSize = dtype_info(Block::kDType).block_size;
  for (std::int64_t b = 0; b < blocks; ++b) unpack_block(from[b], values + kSize * b);
}

template void unpack_blocks(const BlockIQ4_NL*, std::int64_t, float*);
template void unpack_blocks(const BlockIQ4_XS*, std::int64_t, float*);
template void unpack_blocks(const BlockMXFP4*, std::int64_t, float*);

}  // namespace thalweg
