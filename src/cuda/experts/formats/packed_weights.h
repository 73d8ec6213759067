#pragma once

// What the formats share of PackedWeights<kType>, which holds 32 consecutive weights of a row in registers, still
// packed, and converts them eight at a time, in order, to bf16 or f32. Each format has a file beside this one.
//
//   const auto packed = PackedWeights<DType::kQ4_K>::read(block, sub_block);  // shared or global memory
//   std::uint32_t pairs[4];
//   packed.eight(j, pairs);  // j = 0..3, a constant: weights 8 j .. 8 j + 7 as bf16, the first in bits 0..15 of
//   pairs[0] float values[8]; packed.eight(j, values);
//
// A weight costs two to three instructions: a byte permutation makes a code a float, since 0x43cc0000 is 128 + cc as
// f32, and a multiply-add scales it and subtracts the 128. So a bf16 weight is the exact weight rounded once, whatever
// the format.

#include <cuda_bf16.h>

#include <cstdint>

#include "cuda/common/elements.h"
#include "cuda/common/mma.h"
#include "thalweg/dtype.h"

namespace thalweg::cu {

// As constants, which device code may use.
template <DType kType>
constexpr int kBlockWeights = dtype_info(kType).block_size;
template <DType kType>
constexpr int kBlockBytes = dtype_info(kType).block_bytes;

// ---- reading at any address

// Reads N words from an address that is a multiple of kAlign. Below four, reads the aligned words that hold them.
template <int kAlign, int N>
__device__ inline void read_words(const std::uint8_t* from, std::uint32_t (&words)[N]) {
  if constexpr (kAlign >= 16 && N % 4 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const uint4 four = *reinterpret_cast<const uint4*>(from + 4 * i);
      words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
    }
  } else if constexpr (kAlign >= 8 && N % 2 == 0) {
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      const uint2 two = *reinterpret_cast<const uint2*>(from + 4 * i);
      words[i] = two.x, words[i + 1] = two.y;
    }
  } else if constexpr (kAlign >= 4) {
#pragma unroll
    for (int i = 0; i < N; ++i) words[i] = *reinterpret_cast<const std::uint32_t*>(from + 4 * i);
  } else {
    const auto address = reinterpret_cast<std::uintptr_t>(from);
    const auto off = static_cast<std::uint32_t>(address & 3);
    const auto* aligned = reinterpret_cast<const std::uint32_t*>(from - off);
    const std::uint32_t last = aligned[off != 0 ? N : N - 1];
    std::uint32_t low = aligned[0];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const std::uint32_t high = i + 1 < N ? aligned[i + 1] : last;
      words[i] = __funnelshift_r(low, high, 8 * off);
      low = high;
    }
  }
}

template <int kAlign>
__device__ inline std::uint32_t read_half(const std::uint8_t* from) {
  if constexpr (kAlign >= 2) return *reinterpret_cast<const std::uint16_t*>(from);
  return from[0] | static_cast<std::uint32_t>(from[1]) << 8;
}

__device__ inline float f16_bits_to_f32(std::uint32_t bits) { return to_f32(F16{static_cast<std::uint16_t>(bits)}); }
__device__ inline float low_f16(std::uint32_t word) { return f16_bits_to_f32(word & 0xFFFFU); }
__device__ inline float high_f16(std::uint32_t word) { return f16_bits_to_f32(word >> 16); }

// ---- codes to weights

// weight = scale code + offset, for a format's unsigned codes.
struct Scaling {
  float scale;
  float offset;
};

// A code of up to 127 fits into the mantissa's byte 2: the float is 128 + code. kWide: larger codes go into byte 1: the
// float is 32768 + code.
template <bool kWide>
__device__ inline float code_float(std::uint32_t four_codes, int i) {
  constexpr std::uint32_t kBiasBytes = kWide ? 0x47000000U : 0x43000000U;
  // The bytes of kBiasBytes, numbered 4 to 7, with the code in place of byte 2 or, if kWide, of byte 1.
  const auto code = static_cast<std::uint32_t>(i);
  return __uint_as_float(__byte_perm(four_codes, kBiasBytes, kWide ? 0x7404U | code << 4 : 0x7044U | code << 8));
}
template <bool kWide>
constexpr float kFloatBias = kWide ? 32768.0F : 128.0F;

// Converts eight codes of a group, one in a byte, to weights.
template <bool kWide>
__device__ inline void scale_codes(uint2 codes, Scaling group, float (&values)[8]) {
  const float offset = fmaf(-kFloatBias<kWide>, group.scale, group.offset);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] = fmaf(code_float<kWide>(i < 4 ? codes.x : codes.y, i % 4), group.scale, offset);
  }
}

// The same to bf16, for codes up to 127. One permutation makes two codes floats, with the byte 0x43 between them: the
// word is the upper one, 128 + code + kBelow plus at most 127 / 65536 from the lower one, far below the rounding that
// follows. Shifted left by 16 it is the lower one. Permutations and conversions have half the rate of multiply-adds,
// and left shifts can be multiply-adds.
__device__ inline void scale_codes(uint2 codes, Scaling group, std::uint32_t (&pairs)[4]) {
  constexpr float kBelow = 0x4300 / 65536.0F;
  const float offset = fmaf(-128.0F, group.scale, group.offset);
  const float upper_offset = fmaf(-kBelow, group.scale, offset);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::uint32_t four = half == 0 ? codes.x : codes.y;
    const std::uint32_t even = __byte_perm(four, 0x43U, 0x4240);  // codes 0 and 2
    const std::uint32_t odd = __byte_perm(four, 0x43U, 0x4341);
    const auto lower = [&](std::uint32_t two) { return fmaf(__uint_as_float(two << 16), group.scale, offset); };
    const auto upper = [&](std::uint32_t two) { return fmaf(__uint_as_float(two), group.scale, upper_offset); };
    pairs[2 * half] = pack<__nv_bfloat16>(lower(even), lower(odd));
    pairs[2 * half + 1] = pack<__nv_bfloat16>(upper(even), upper(odd));
  }
}

__device__ inline void pack_eight(const float (&values)[8], std::uint32_t (&pairs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = pack<__nv_bfloat16>(values[2 * i], values[2 * i + 1]);
}

// ---- the formats

// A format with codes derives from this and provides read(), codes(j), the eight codes from 8 j on (j a constant), and
// scaling(half), that of the 16 weights from 16 half on.
template <class Format, bool kWide, int kGroupWeights = 32>
struct CodedWeights {
  __device__ void eight(int j, float (&values)[8]) const {
    const auto& self = *static_cast<const Format*>(this);
    scale_codes<kWide>(self.codes(j), self.scaling(j / 2), values);
  }
  __device__ void eight(int j, std::uint32_t (&pairs)[4]) const {
    if constexpr (kWide) {
      float values[8];
      eight(j, values);
      pack_eight(values, pairs);
    } else {
      const auto& self = *static_cast<const Format*>(this);
      scale_codes(self.codes(j), self.scaling(j / 2), pairs);
    }
  }
  static constexpr int kGroup = kGroupWeights;  // weights that share a scaling
  static constexpr bool kCoded = true;
};

// A format whose blocks of 32 weights are a scale in f16 and kWords words of codes.
template <class Format, int kWords, bool kWide>
struct ScaledWords : CodedWeights<Format, kWide> {
  static constexpr int kAlign = 2;
  std::uint32_t words[kWords];
  float scale;

  __device__ static Format read(const std::uint8_t* block, int) {
    Format packed;
    packed.scale = f16_bits_to_f32(read_half<kAlign>(block));
    read_words<kAlign>(block + 2, packed.words);
    return packed;
  }
};

// Specialized for each dtype but I32:
//   kAlign                  what a block's address is a multiple of
//   kCoded                  whether the format has codes
//   read(block, sub_block)  reads the 32 weights from 32 sub_block on; of a plain type, the 32 from `block` on
//   eight(j, pairs)         weights 8 j .. 8 j + 7 as bf16; eight(j, values): as f32
template <DType kType>
struct PackedWeights;

// ---- shared by several formats

// 32 weights of F32, F16 or BF16; Format converts them to f32.
template <class Format, int kWords>
struct PlainWeights {
  static constexpr int kAlign = 16;
  static constexpr bool kCoded = false;
  std::uint32_t words[kWords];

  __device__ static Format read(const std::uint8_t* block, int) {
    Format packed;
    read_words<kAlign>(block, packed.words);
    return packed;
  }
  __device__ void eight(int j, std::uint32_t (&pairs)[4]) const {
    float values[8];
    static_cast<const Format*>(this)->eight(j, values);
    pack_eight(values, pairs);
  }
};

// Codes 8 j .. 8 j + 7 from 16 bytes of nibbles: codes 0..15 are the low nibbles, 16..31 the high ones.
__device__ inline uint2 nibbles(const std::uint32_t (&words)[4], int j) {
  const int first = j % 2 * 2;
  const int shift = j / 2 * 4;
  return {words[first] >> shift & 0x0F0F0F0FU, words[first + 1] >> shift & 0x0F0F0F0FU};
}

// Bytes 8 j .. 8 j + 7 of 32.
__device__ inline uint2 eight_of(const std::uint32_t (&words)[8], int j) { return {words[2 * j], words[2 * j + 1]}; }
__device__ inline uint2 operator>>(uint2 x, int shift) { return {x.x >> shift, x.y >> shift}; }
__device__ inline uint2 operator<<(uint2 x, int shift) { return {x.x << shift, x.y << shift}; }
__device__ inline uint2 operator&(uint2 x, std::uint32_t mask) { return {x.x & mask, x.y & mask}; }
__device__ inline uint2 operator|(uint2 x, uint2 y) { return {x.x | y.x, x.y | y.y}; }

// Moves bits 0..3 to bit 4 of bytes 0..3.
__device__ inline std::uint32_t spread_fifth_bits(std::uint32_t four_bits) {
  return (four_bits & 15U) * 0x02040810U & 0x10101010U;
}

// Codes 8 j .. 8 j + 7 from 16 bytes of nibbles and a word of fifth bits.
__device__ inline uint2 five_bits(const std::uint32_t (&words)[4], std::uint32_t high, int j) {
  const uint2 low = nibbles(words, j);
  return {low.x | spread_fifth_bits(high >> (8 * j)), low.y | spread_fifth_bits(high >> (8 * j + 4))};
}

}  // namespace thalweg::cu
