#pragma once

// What Q4_K and Q5_K share: blocks of 256 begin with a scale and a minimum in f16 and, for each 32 weights, a scale and
// a minimum of 6 bits, in 12 bytes.

#include "cuda/experts/formats/fixed_products.h"
#include "cuda/experts/formats/k_tile_codes.h"
#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

// Scale and minimum of 32 weights, the g-th, from the first 16 bytes of a block.
__device__ inline Scaling q45_scaling(const std::uint32_t (&head)[4], int g) {
  const std::uint32_t shift = static_cast<std::uint32_t>(g % 4) * 8;
  const std::uint32_t a = head[1] >> shift;
  const std::uint32_t b = head[2] >> shift;
  const std::uint32_t c = head[3] >> shift;
  const std::uint32_t scale = g < 4 ? a & 63U : (c & 15U) | (a >> 2 & 0x30U);
  const std::uint32_t minimum = g < 4 ? b & 63U : (c >> 4 & 15U) | (b >> 2 & 0x30U);
  return {low_f16(head[0]) * static_cast<float>(scale), -high_f16(head[0]) * static_cast<float>(minimum)};
}

// Scales and minima of 6 bits as bytes: of sub-blocks 0..3 and 4..7.
struct SixBitScales {
  std::uint32_t scales[2];
  std::uint32_t minima[2];

  __device__ explicit SixBitScales(const std::uint32_t (&head)[4]) {
    scales[0] = head[1] & 0x3F3F3F3FU;
    scales[1] = (head[3] & 0x0F0F0F0FU) | (head[1] >> 2 & 0x30303030U);
    minima[0] = head[2] & 0x3F3F3F3FU;
    minima[1] = (head[3] >> 4 & 0x0F0F0F0FU) | (head[2] >> 2 & 0x30303030U);
  }
  // Of sub-block 2 t + i, twice, plus 1024.
  __device__ static std::uint32_t pair(const std::uint32_t (&words)[2], int t, int i) {
    const std::uint32_t word = t < 2 ? words[0] : words[1];
    const auto at = static_cast<std::uint32_t>(t % 2 * 2 + i);
    return __byte_perm(word, 0x64U, 0x4040U | at * 0x0101U);
  }
};

// kSpread: the factor of code' in odd sub-blocks.
template <DType kType, int kSpread>
struct SuperBlockCodes {
  static constexpr int kGroup = 32;
  static constexpr bool kFirst = true;
  static constexpr bool kSecond = true;
  const std::uint8_t* row;
  float d;
  float minimum;
  SixBitScales six;

  __device__ explicit SuperBlockCodes(const std::uint8_t* tile) : SuperBlockCodes(tile, head_of(tile)) {}
  __device__ float scale(int sub_block, int, std::uint32_t bias_bytes) const {
    const float factor = sub_block % 2 == 0 ? d : d / kSpread;
    return fmaf(biased_byte(six.scales[sub_block / 4], sub_block % 4, bias_bytes), factor, -128.0F * factor);
  }
  __device__ float offset(int sub_block, int, float, std::uint32_t bias_bytes) const {
    return fmaf(biased_byte(six.minima[sub_block / 4], sub_block % 4, bias_bytes), -minimum, 128.0F * minimum);
  }
  __device__ std::uint32_t first(int t, int i) const {
    constexpr float kFraction = 1.0F / kSpread;
    const std::uint32_t pair = SixBitScales::pair(six.scales, t, i);
    return i == 0 || kSpread == 1 ? add_halves(pair, -1024.0F) : scale_halves(pair, kFraction, -1024.0F * kFraction);
  }
  __device__ std::uint32_t second(int t, int i) const {
    return add_halves(SixBitScales::pair(six.minima, t, i), -1024.0F);
  }
  __device__ float first_factor() const { return -kCodeBias * d; }
  __device__ float second_factor() const { return -minimum; }

 private:
  struct Head {
    std::uint32_t words[4];
  };
  __device__ static Head head_of(const std::uint8_t* tile) {
    Head head;
    read_words<16>(tile, head.words);
    return head;
  }
  __device__ SuperBlockCodes(const std::uint8_t* tile, const Head& head)
      : row(tile), d(low_f16(head.words[0])), minimum(high_f16(head.words[0])), six(head.words) {}
};

// The two share 32 bytes: one is the low, the other the high nibbles, which stay where they are. Their scales and
// minima are neighbors too.
template <DType kType>
requires(kType == DType::kQ4_K || kType == DType::kQ5_K) struct PackedPair<kType> {
  static constexpr bool kFifth = kType == DType::kQ5_K;
  std::uint32_t head[4];
  std::uint32_t words[8];
  std::uint32_t fifth[kFifth ? 8 : 1];

  __device__ static PackedPair read(const std::uint8_t* block, const std::uint8_t*, int sub_block) {
    PackedPair packed;
    read_words<16>(block, packed.head);
    read_words<16>(block + (kFifth ? 48 : 16) + sub_block / 2 * 32, packed.words);
    if constexpr (kFifth) read_words<16>(block + 16, packed.fifth);
    return packed;
  }
  __device__ float product(int sub_block, const FixedBlock& even_x, const FixedBlock& odd_x) const {
    const int quarter = sub_block / 2;
    const std::uint32_t a = head[1] >> (quarter % 2 * 16);
    const std::uint32_t b = head[2] >> (quarter % 2 * 16);
    const std::uint32_t c = head[3] >> (quarter % 2 * 16);
    // The lanes of a warp have different quarters; with a constant mask the compiler would branch around all that
    // follows.
    std::uint32_t upper = quarter < 2 ? 0U : 0xFFFFFFFFU;
    asm("" : "+r"(upper));
    const std::uint32_t factors = (a & 0x3F3FU & ~upper) | (((c & 0x0F0FU) | (a >> 2 & 0x3030U)) & upper);
    const std::uint32_t minimums = (b & 0x3F3FU & ~upper) | (((c >> 4 & 0x0F0FU) | (b >> 2 & 0x3030U)) & upper);
    int even_high = 0;
    int even_low = 0;
    int odd_high = 0;
    int odd_low = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      std::uint32_t even_codes = words[i] & 0x0F0F0F0FU;
      std::uint32_t odd_codes = words[i];
      if constexpr (kFifth) {
        even_codes |= (fifth[i] >> sub_block & 0x01010101U) << 4;
        odd_codes = (odd_codes >> 4 & 0x0F0F0F0FU) | (fifth[i] >> sub_block & 0x02020202U) << 3;
      } else {
        odd_codes &= 0xF0F0F0F0U;
      }
      even_high = dot_four(even_codes, even_x.high[i], even_high);
      even_low = dot_four(even_codes, even_x.low[i], even_low);
      odd_high = dot_four(odd_codes, odd_x.high[i], odd_high);
      odd_low = dot_four(odd_codes, odd_x.low[i], odd_low);
    }
    constexpr float kOdd = kFifth ? 1.0F : 1.0F / 16;
    const float even_dot = static_cast<float>(128 * even_high + even_low) * even_x.scale;
    const float odd_dot = static_cast<float>(128 * odd_high + odd_low) * (odd_x.scale * kOdd);
    const float codes = fmaf(static_cast<float>(factors & 0xFFU), even_dot, static_cast<float>(factors >> 8) * odd_dot);
    const float even_sum = even_x.scale * (even_x.sums[0] + even_x.sums[1]);
    const float odd_sum = odd_x.scale * (odd_x.sums[0] + odd_x.sums[1]);
    const float sums =
        fmaf(static_cast<float>(minimums & 0xFFU), even_sum, static_cast<float>(minimums >> 8) * odd_sum);
    return fmaf(low_f16(head[0]), codes, -high_f16(head[0]) * sums);
  }
};

}  // namespace thalweg::cu
