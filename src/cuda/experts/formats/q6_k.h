#pragma once

// Q6_K: blocks of 256 in 210 bytes: 128 bytes of low nibbles, 64 bytes of upper pairs of bits, 16 signed scales, a
// scale in f16.

#include "cuda/experts/formats/fixed_products.h"
#include "cuda/experts/formats/k_tile_codes.h"
#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

// Blocks begin at even bytes: one shift aligns words and selects the bits.
template <>
struct PackedWeights<DType::kQ6_K> : CodedWeights<PackedWeights<DType::kQ6_K>, false, 16> {
  static constexpr int kAlign = 2;
  std::uint32_t words[9];
  std::uint32_t high[9];
  int shift;
  std::uint32_t high_factor;  // 16 or 4: moves the upper two bits above the lower four
  Scaling groups[2];

  __device__ static PackedWeights read(const std::uint8_t* block, int sub_block) {
    PackedWeights packed;
    const int half = sub_block / 4;
    const int quarter = sub_block % 4;
    const auto off = static_cast<int>(reinterpret_cast<std::uintptr_t>(block) & 2);
    read_words<4>(block - off + 64 * half + 32 * (quarter % 2), packed.words);
    read_words<4>(block - off + 128 + 32 * half, packed.high);
    packed.shift = 8 * off + quarter / 2 * 4;
    packed.high_factor = quarter % 2 == 0 ? 16 : 4;
    const std::uint32_t both = read_half<kAlign>(block + 192 + 2 * sub_block);
    const float scale = f16_bits_to_f32(read_half<kAlign>(block + 208));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float group = scale * static_cast<float>(static_cast<std::int8_t>(both >> (8 * i)));
      packed.groups[i] = {group, -32.0F * group};
    }
    return packed;
  }
  __device__ uint2 codes(int j) const {
    const auto four = [&](int i) {
      const std::uint32_t low = __funnelshift_r(words[i], words[i + 1], shift);
      const std::uint32_t bits = __funnelshift_r(high[i], high[i + 1], shift);
      return (low & 0x0F0F0F0FU) | (bits * high_factor & 0x30303030U);
    };
    return {four(2 * j), four(2 * j + 1)};
  }
  __device__ Scaling scaling(int half) const { return groups[half]; }
};

// The two share their upper bits, and their words follow each other. Blocks begin at even bytes: one shift aligns words
// and selects the bits.
template <>
struct PackedPair<DType::kQ6_K> {
  std::uint32_t words[17];
  std::uint32_t high[9];
  std::uint32_t groups;  // four factors
  float scale;
  int shift;  // from words[0] to the first byte

  __device__ static PackedPair read(const std::uint8_t* block, const std::uint8_t*, int sub_block) {
    PackedPair packed;
    const int half = sub_block / 4;
    const auto off = static_cast<int>(reinterpret_cast<std::uintptr_t>(block) & 2);
    const auto* const aligned = reinterpret_cast<const std::uint32_t*>(block - off + 64 * half);
#pragma unroll
    for (int i = 0; i < 17; ++i) packed.words[i] = aligned[i];
    const auto* const upper = reinterpret_cast<const std::uint32_t*>(block - off + 128 + 32 * half);
#pragma unroll
    for (int i = 0; i < 9; ++i) packed.high[i] = upper[i];
    packed.groups = read_half<2>(block + 192 + 2 * sub_block) | read_half<2>(block + 194 + 2 * sub_block) << 16;
    packed.scale = f16_bits_to_f32(read_half<2>(block + 208));
    packed.shift = 8 * off;
    return packed;
  }
  __device__ float product(int sub_block, const FixedBlock& even_x, const FixedBlock& odd_x) const {
    const int quarter_shift = shift + sub_block % 4 / 2 * 4;
    const auto group = [&](int i) { return static_cast<float>(static_cast<std::int8_t>(groups >> (8 * i))); };
    float sum = 0.0F;
#pragma unroll
    for (int which = 0; which < 2; ++which) {
      const FixedBlock& x = which == 0 ? even_x : odd_x;
      float of_block = 0.0F;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int upper = 0;
        int lower = 0;
#pragma unroll
        for (int i = 4 * half; i < 4 * half + 4; ++i) {
          const std::uint32_t low = __funnelshift_r(words[8 * which + i], words[8 * which + i + 1], quarter_shift);
          const std::uint32_t bits = __funnelshift_r(high[i], high[i + 1], quarter_shift);
          const std::uint32_t codes = (low & 0x0F0F0F0FU) | (bits << (which == 0 ? 4 : 2) & 0x30303030U);
          upper = dot_four(codes, x.high[i], upper);
          lower = dot_four(codes, x.low[i], lower);
        }
        // Codes are counted from -32.
        of_block = fmaf(group(2 * which + half), fmaf(-32.0F, x.sums[half], static_cast<float>(128 * upper + lower)),
                        of_block);
      }
      sum = fmaf(x.scale, of_block, sum);
    }
    return scale * sum;
  }
};

template <>
constexpr std::uint32_t kBiasBytes<DType::kQ6_K> = 0x47430064U;

template <>
struct KTileCodes<DType::kQ6_K> {
  static constexpr int kGroup = 16;
  static constexpr bool kFirst = true;
  static constexpr bool kSecond = false;
  ShiftedWords words;
  float d;

  __device__ explicit KTileCodes(const std::uint8_t* tile)
      : words(tile), d(f16_bits_to_f32(read_half<2>(tile + 208))) {}
  __device__ float scale(int sub_block, int half, std::uint32_t bias_bytes) const {
    // Exact: d has eleven bits, the factor nine.
    const std::uint32_t scales = words[48 + sub_block / 2] ^ 0x80808080U;
    const auto at = static_cast<std::uint32_t>(sub_block % 2 * 2 + half);
    return fmaf(__uint_as_float(__byte_perm(scales, bias_bytes, 0x7505U | at << 4)), d, -32896.0F * d);
  }
  __device__ uint2 bytes(int sub_block, int t) const {
    const int half = sub_block / 4;
    const int quarter = sub_block % 4;
    const uint2 low = words.quarter(64 * half + 32 * (quarter % 2), t) >> (quarter / 2 * 4) & 0x0F0F0F0FU;
    const uint2 high = words.quarter(128 + 32 * half, t) >> (quarter * 2) & 0x03030303U;
    return low | high << 4;
  }
  __device__ float offset(int, int, float scale, std::uint32_t) const { return -32.0F * scale; }
  __device__ std::uint32_t first(int t, int i) const {
    return add_halves(halves_of(words[48 + t] ^ 0x80808080U, i), -1152.0F);
  }
  __device__ float first_factor() const { return (-kCodeBias - 32.0F) * d; }
};

}  // namespace thalweg::cu
