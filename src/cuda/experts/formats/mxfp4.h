#pragma once

// MXFP4: blocks of 32 in 17 bytes: an exponent, 16 bytes of nibbles, which are E2M1 numbers ("levels": kMxfp4Levels is
// twice their values).

#include "cuda/experts/formats/fixed_products.h"
#include "cuda/experts/formats/k_tile_codes.h"
#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

// 2^(exponent - 127); zero for the smallest exponent, 0.
__device__ inline float mxfp4_scale(std::uint32_t exponent) { return __uint_as_float(exponent << 23); }

// Looks up the lower three bits of a word's first four nibbles in a table of eight bytes. Where a nibble's fourth bit
// is set, the result is the sign of the byte found: zero, if the table has no negative bytes.
__device__ inline std::uint32_t look_up_unless_signed(std::uint32_t first, std::uint32_t last, std::uint32_t word) {
  std::uint32_t found;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(first), "r"(last), "r"(word));
  return found;
}

// kMxfp4Levels + 12 of a word's first four nibbles, as the sum of two lookups: one for levels without a sign, one for
// levels with a sign.
class Mxfp4Table {
 public:
  // zero: a zero that is not a constant to the compiler and may differ between threads; else it moves the tables into
  // registers at every use.
  __device__ explicit Mxfp4Table(std::uint32_t zero) : zero_(zero) {}

  __device__ std::uint32_t positive(std::uint32_t word) const {
    return look_up_unless_signed(0x0F0E0D0CU | zero_, 0x18141210U, word);
  }
  // Of the inverted word.
  __device__ std::uint32_t negative(std::uint32_t opposite) const {
    return look_up_unless_signed(0x08060400U | zero_, 0x0C0B0A09U, opposite);
  }
  // The logic pipe is the bottleneck, so that multiply-adds invert and add.
  __device__ std::uint32_t opposite(std::uint32_t word) const { return multiply_and_add(word, ~zero_, ~zero_); }
  __device__ std::uint32_t both(std::uint32_t word) const {
    return multiply_and_add(positive(word), zero_ + 1, negative(opposite(word)));
  }

 private:
  __device__ static std::uint32_t multiply_and_add(std::uint32_t x, std::uint32_t y, std::uint32_t z) {
    std::uint32_t sum;
    asm("mad.lo.u32 %0, %1, %2, %3;" : "=r"(sum) : "r"(x), "r"(y), "r"(z));
    return sum;
  }

  std::uint32_t zero_;
};

template <>
struct PackedWeights<DType::kMXFP4> : CodedWeights<PackedWeights<DType::kMXFP4>, false> {
  static constexpr int kAlign = 1;
  std::uint32_t mixed[8];  // kMxfp4Levels + 12 of weights 2 i, 2 i + 16, 2 i + 1, 2 i + 17: the order of nibbles
  std::uint32_t exponent;
  std::uint32_t zero;

  // zero: see Mxfp4Table.
  __device__ static PackedWeights read(const std::uint8_t* block, int zero) {
    const auto offset = static_cast<int>(reinterpret_cast<std::uintptr_t>(block) & 3);
    return read_words(block - offset, offset, static_cast<std::uint32_t>(zero));
  }
  // Reads a block that begins `offset` bytes after `words`.
  __device__ static PackedWeights read_words(const std::uint8_t* words, int offset, std::uint32_t zero) {
    PackedWeights packed;
    packed.zero = zero;
    const Mxfp4Table table(zero);
    std::uint32_t aligned[5];  // these hold the block, wherever it begins
    thalweg::cu::read_words<4>(words, aligned);
    packed.exponent = __byte_perm(aligned[0], 0, 0x4440U + static_cast<std::uint32_t>(offset));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t word =
          __funnelshift_rc(aligned[i], aligned[i + 1], 8 * static_cast<std::uint32_t>(offset) + 8);
      packed.mixed[2 * i] = table.both(word);
      packed.mixed[2 * i + 1] = table.both(word >> 16);
    }
    return packed;
  }
  __device__ uint2 codes(int j) const {
    const std::uint32_t order = j < 2 ? 0x6420U : 0x7531U;
    const int first = j % 2 * 4;
    return {__byte_perm(mixed[first], mixed[first + 1], order), __byte_perm(mixed[first + 2], mixed[first + 3], order)};
  }
  __device__ float scale() const { return mxfp4_scale(exponent); }
  __device__ Scaling scaling(int) const { return {0.5F * scale(), -6.0F * scale()}; }

  // A level is exact in bf16, times any power of two: one permutation makes two codes 128 + level, one multiply-add
  // scales them. Weights of 2^122 and more become infinite.
  using CodedWeights::eight;
  __device__ void eight(int j, std::uint32_t (&pairs)[4]) const {
    const std::uint32_t twice = exponent * 0x00800080U;  // the scale
    const auto& both = reinterpret_cast<const __nv_bfloat162&>(twice);
    const __nv_bfloat162 scales = __hmul2(both, __float2bfloat162_rn(0.5F));
    const __nv_bfloat162 offsets = __hmul2(both, __float2bfloat162_rn(-70.0F));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t bias_bytes = __byte_perm(mixed[j % 2 * 4 + i], 0x43U | zero, j < 2 ? 0x4240 : 0x4341);
      const __nv_bfloat162 weight = __hfma2(reinterpret_cast<const __nv_bfloat162&>(bias_bytes), scales, offsets);
      pairs[i] = reinterpret_cast<const std::uint32_t&>(weight);
    }
  }
};

// ---- products with activations in fixed point

// Puts activations into the order of PackedWeights::mixed.
__device__ inline void interleave_plane(std::uint32_t (&plane)[8]) {
  std::uint32_t mixed[8];
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    mixed[2 * i] = __byte_perm(plane[i], plane[4 + i], 0x5140);
    mixed[2 * i + 1] = __byte_perm(plane[i], plane[4 + i], 0x7362);
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) plane[i] = mixed[i];
}

// The products are those with twice the levels, plus 12.
template <>
__device__ inline void order_block<DType::kMXFP4>(FixedBlock& x) {
  interleave_plane(x.high);
  interleave_plane(x.low);
  x.scale *= 0.5F;
  x.sums[0] = __int_as_float(-12 * static_cast<int>(x.sums[0] + x.sums[1]));
}

template <>
__device__ inline float block_product<DType::kMXFP4>(const PackedWeights<DType::kMXFP4>& packed, const FixedBlock& x) {
  int high = 0;
  int low = __float_as_int(x.sums[0]);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    high = dot_four(packed.mixed[i], x.high[i], high);
    low = dot_four(packed.mixed[i], x.low[i], low);
  }
  return packed.scale() * static_cast<float>(128 * high + low);
}

// ---- products with activations in f16

template <>
constexpr float kCodesFactor<DType::kMXFP4> = 16384.0F;

// Bits of `set` where the mask is set, else of `clear`: one instruction, where the compiler makes two of the same in
// C++.
__device__ inline std::uint32_t choose_bits(std::uint32_t mask, std::uint32_t set, std::uint32_t clear) {
  std::uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(bits) : "r"(mask), "r"(set), "r"(clear));
  return bits;
}

// Levels instead of codes, as f16 (pairs() instead of bytes()), so that they have no bias: the bits of a level, below
// three zero bits of the exponent, are 2^-14 of it. K tiles begin at multiples of kAlign.
template <int kAlign>
struct Mxfp4Codes {
  static constexpr int kGroup = 32;
  static constexpr bool kFirst = false;
  static constexpr bool kSecond = false;
  const std::uint8_t* row;

  __device__ explicit Mxfp4Codes(const std::uint8_t* tile) : row(tile) {}
  __device__ float scale(int sub_block, int, std::uint32_t) const {
    return mxfp4_scale(row[sub_block * kBlockBytes<DType::kMXFP4>]);
  }
  __device__ void pairs(int sub_block, int t, std::uint32_t (&pairs)[4]) const {
    const std::uint32_t codes = word(sub_block * kBlockBytes<DType::kMXFP4> + 1, t);
    // Upper bytes of f16 numbers, of the low and of the high nibbles. Sign bits of the other nibble are masked by
    // choose_bits.
    std::uint32_t signs = codes & 0x88888888U;
    asm("" : "+r"(signs));
    const std::uint32_t first = choose_bits(0x0E0E0E0EU, codes << 1, signs << 4);
    const std::uint32_t last = choose_bits(0x0E0E0E0EU, codes >> 3, signs);
    pairs[0] = __byte_perm(first, 0, 0x2404);
    pairs[1] = first & 0xFF00FF00U;
    pairs[2] = __byte_perm(last, 0, 0x2404);
    pairs[3] = last & 0xFF00FF00U;
  }

 private:
  __device__ std::uint32_t word(int offset, int t) const {
    if constexpr (kAlign < 4) return ShiftedWords(row + offset)[t];
    const auto* words = reinterpret_cast<const std::uint32_t*>(row + offset / 4 * 4 + 4 * t);
    return offset % 4 == 0 ? words[0] : __funnelshift_r(words[0], words[1], static_cast<unsigned>(offset % 4 * 8));
  }
};
template <>
struct KTileCodes<DType::kMXFP4> : Mxfp4Codes<1> {
  using Mxfp4Codes::Mxfp4Codes;
};

template <>
struct CodesOf<DType::kMXFP4, true> {
  using Type = Mxfp4Codes<4>;
};

}  // namespace thalweg::cu
