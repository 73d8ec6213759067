#pragma once

// Weights of every format as kernels take them, read from blocks as they lie in a file: PackedWeights<kType> holds 32
// consecutive weights of a row in registers, still packed, and gives them eight at a time, in order, as bf16 or f32.
//
//   const auto packed = PackedWeights<DType::kQ4_K>::read(block, part);  // shared or global memory
//   std::uint32_t pairs[4];
//   packed.eight(j, pairs);  // j 0..3, a constant: weights 8 j .. 8 j + 7 as bf16, the first in the low half of
//   pairs[0] float values[8]; packed.eight(j, values);
//
// A weight costs two to three instructions: one byte permutation makes a code a float, since 0x43cc0000 is 128 + cc as
// f32, and one multiply-add scales it and takes the 128 out again. So a bf16 weight is the exact one rounded once,
// whatever the format.

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

// N words from an address that is a multiple of kAlign. Where that is less than four, whole aligned words are read, of
// which each holds some byte that was asked for.
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

// weight = scale code + offset, for the unsigned codes of a format.
struct Scaling {
  float scale;
  float offset;
};

// Codes above 127 have no room in seven bits of a mantissa: with kWide they stand in the next byte, over 32768.
template <bool kWide>
__device__ inline float code_float(std::uint32_t four_codes, int i) {
  constexpr std::uint32_t kOver = kWide ? 0x47000000U : 0x43000000U;
  // kOver (bytes 4 to 7), with the code in place of byte 2 or, wide, byte 1.
  const auto code = static_cast<std::uint32_t>(i);
  return __uint_as_float(__byte_perm(four_codes, kOver, kWide ? 0x7404U | code << 4 : 0x7044U | code << 8));
}
template <bool kWide>
constexpr float kFloatOver = kWide ? 32768.0F : 128.0F;

// Eight codes (one in a byte) of one group, as weights.
template <bool kWide>
__device__ inline void scale_codes(uint2 codes, Scaling group, float (&values)[8]) {
  const float offset = fmaf(-kFloatOver<kWide>, group.scale, group.offset);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] = fmaf(code_float<kWide>(i < 4 ? codes.x : codes.y, i % 4), group.scale, offset);
  }
}

// The same to bf16, for codes up to 127. Two codes become floats at once, bytes 0x43 between them: the upper one is a
// float as it stands, 128 + code + kBelow and a trifle (at most 127 / 65536, far below the rounding that follows) for
// the lower one. Byte permutations and conversions have half the rate of multiply-adds, and shifts to the left can be
// these.
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

// Four bits to bit 4 of four bytes.
__device__ inline std::uint32_t spread_fifth_bits(std::uint32_t four_bits) {
  return (four_bits & 15U) * 0x02040810U & 0x10101010U;
}

// ---- the formats

// A format with codes provides read(), codes(j) (the eight from 8 j on, j a constant) and scaling(half) (of the 16
// weights from 16 half on); what it gives of them is the same for all.
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

// Specialised for each dtype but I32:
//   kAlign              what a block's address must be a multiple of
//   kCoded              whether it has codes
//   read(block, part)   of the `part`-th 32 weights of a block; of a plain type, `block` is where 32 begin
//   eight(j, pairs or values)
template <DType kType>
struct PackedWeights;

template <>
struct PackedWeights<DType::kF32> {
  static constexpr int kAlign = 16;
  static constexpr bool kCoded = false;
  std::uint32_t words[32];

  __device__ static PackedWeights read(const std::uint8_t* block, int) {
    PackedWeights packed;
    read_words<kAlign>(block, packed.words);
    return packed;
  }
  __device__ void eight(int j, float (&values)[8]) const {
#pragma unroll
    for (int i = 0; i < 8; ++i) values[i] = __uint_as_float(words[8 * j + i]);
  }
  __device__ void eight(int j, std::uint32_t (&pairs)[4]) const {
    float values[8];
    eight(j, values);
    pack_eight(values, pairs);
  }
};

template <>
struct PackedWeights<DType::kF16> {
  static constexpr int kAlign = 16;
  static constexpr bool kCoded = false;
  std::uint32_t words[16];

  __device__ static PackedWeights read(const std::uint8_t* block, int) {
    PackedWeights packed;
    read_words<kAlign>(block, packed.words);
    return packed;
  }
  __device__ void eight(int j, float (&values)[8]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = low_f16(words[4 * j + i]);
      values[2 * i + 1] = high_f16(words[4 * j + i]);
    }
  }
  __device__ void eight(int j, std::uint32_t (&pairs)[4]) const {
    float values[8];
    eight(j, values);
    pack_eight(values, pairs);
  }
};

template <>
struct PackedWeights<DType::kBF16> {
  static constexpr int kAlign = 16;
  static constexpr bool kCoded = false;
  std::uint32_t words[16];

  __device__ static PackedWeights read(const std::uint8_t* block, int) {
    PackedWeights packed;
    read_words<kAlign>(block, packed.words);
    return packed;
  }
  __device__ void eight(int j, float (&values)[8]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      values[2 * i] = __uint_as_float(words[4 * j + i] << 16);
      values[2 * i + 1] = __uint_as_float(words[4 * j + i] & 0xFFFF0000U);
    }
  }
  __device__ void eight(int j, std::uint32_t (&pairs)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) pairs[i] = words[4 * j + i];
  }
};

// Halves of 16 bytes: codes 0..15 in the low ones, 16..31 in the high ones.
__device__ inline uint2 nibbles(const std::uint32_t (&words)[4], int j) {
  const int first = j % 2 * 2;
  const int shift = j / 2 * 4;
  return {words[first] >> shift & 0x0F0F0F0FU, words[first + 1] >> shift & 0x0F0F0F0FU};
}

template <>
struct PackedWeights<DType::kQ4_0> : CodedWeights<PackedWeights<DType::kQ4_0>, false> {
  static constexpr int kAlign = 2;
  std::uint32_t words[4];
  float scale;

  __device__ static PackedWeights read(const std::uint8_t* block, int) {
    PackedWeights packed;
    packed.scale = f16_bits_to_f32(read_half<kAlign>(block));
    read_words<kAlign>(block + 2, packed.words);
    return packed;
  }
  __device__ uint2 codes(int j) const { return nibbles(words, j); }
  __device__ Scaling scaling(int) const { return {scale, -8.0F * scale}; }
};

template <>
struct PackedWeights<DType::kQ4_1> : CodedWeights<PackedWeights<DType::kQ4_1>, false> {
  static constexpr int kAlign = 4;
  std::uint32_t words[4];
  Scaling block_scaling;

  __device__ static PackedWeights read(const std::uint8_t* block, int) {
    PackedWeights packed;
    std::uint32_t head[1];
    read_words<kAlign>(block, head);
    packed.block_scaling = {low_f16(head[0]), high_f16(head[0])};
    read_words<kAlign>(block + 4, packed.words);
    return packed;
  }
  __device__ uint2 codes(int j) const { return nibbles(words, j); }
  __device__ Scaling scaling(int) const { return block_scaling; }
};

// The lower four bits as in Q4_0, the fifth bits of all 32 in a word.
__device__ inline uint2 five_bits(const std::uint32_t (&words)[4], std::uint32_t high, int j) {
  const uint2 low = nibbles(words, j);
  return {low.x | spread_fifth_bits(high >> (8 * j)), low.y | spread_fifth_bits(high >> (8 * j + 4))};
}

template <>
struct PackedWeights<DType::kQ5_0> : CodedWeights<PackedWeights<DType::kQ5_0>, false> {
  static constexpr int kAlign = 2;
  std::uint32_t words[4];
  std::uint32_t high;
  float scale;

  __device__ static PackedWeights read(const std::uint8_t* block, int) {
    PackedWeights packed;
    packed.scale = f16_bits_to_f32(read_half<kAlign>(block));
    std::uint32_t all[5];
    read_words<kAlign>(block + 2, all);
    packed.high = all[0];
#pragma unroll
    for (int i = 0; i < 4; ++i) packed.words[i] = all[1 + i];
    return packed;
  }
  __device__ uint2 codes(int j) const { return five_bits(words, high, j); }
  __device__ Scaling scaling(int) const { return {scale, -16.0F * scale}; }
};

template <>
struct PackedWeights<DType::kQ5_1> : CodedWeights<PackedWeights<DType::kQ5_1>, false> {
  static constexpr int kAlign = 8;
  std::uint32_t words[4];
  std::uint32_t high;
  Scaling block_scaling;

  __device__ static PackedWeights read(const std::uint8_t* block, int) {
    PackedWeights packed;
    std::uint32_t head[2];
    read_words<kAlign>(block, head);
    packed.block_scaling = {low_f16(head[0]), high_f16(head[0])};
    packed.high = head[1];
    read_words<kAlign>(block + 8, packed.words);
    return packed;
  }
  __device__ uint2 codes(int j) const { return five_bits(words, high, j); }
  __device__ Scaling scaling(int) const { return block_scaling; }
};

template <>
struct PackedWeights<DType::kQ8_0> : CodedWeights<PackedWeights<DType::kQ8_0>, true> {
  static constexpr int kAlign = 2;
  std::uint32_t words[8];
  float scale;

  __device__ static PackedWeights read(const std::uint8_t* block, int) {
    PackedWeights packed;
    packed.scale = f16_bits_to_f32(read_half<kAlign>(block));
    read_words<kAlign>(block + 2, packed.words);
    return packed;
  }
  __device__ uint2 codes(int j) const { return {words[2 * j] ^ 0x80808080U, words[2 * j + 1] ^ 0x80808080U}; }
  __device__ Scaling scaling(int) const { return {scale, -128.0F * scale}; }
};

// Levels of a table of sixteen bytes (in four words): those that the halves of bytes name.
__device__ inline std::uint32_t look_up_four(const std::uint32_t (&levels)[4], std::uint32_t nibbles_in_bytes) {
  const std::uint32_t halves = __byte_perm(nibbles_in_bytes | nibbles_in_bytes >> 4, 0, 0x4420);  // in 16 bits
  const std::uint32_t in_half = halves & 0x7777U;
  const std::uint32_t which = 0x3210U | (halves & 0x8888U) >> 1;
  return __byte_perm(__byte_perm(levels[0], levels[1], in_half), __byte_perm(levels[2], levels[3], in_half), which);
}
// The same for a word's low halves of bytes or its high ones. What serves both is worked out once.
__device__ inline std::uint32_t look_up_halves(const std::uint32_t (&levels)[4], std::uint32_t word, bool high) {
  const std::uint32_t in_half = word & 0x77777777U;
  const std::uint32_t which = 0x32103210U | (word & 0x88888888U) >> 1;
  // Low, high, low, high half of two bytes.
  const auto two_bytes = [&](int shift) {
    const std::uint32_t at = in_half >> shift;
    return __byte_perm(__byte_perm(levels[0], levels[1], at), __byte_perm(levels[2], levels[3], at), which >> shift);
  };
  return __byte_perm(two_bytes(0), two_bytes(16), high ? 0x7531 : 0x6420);
}
// Eight levels from halves of 16 bytes, as of nibbles().
__device__ inline uint2 look_up(const std::uint32_t (&levels)[4], const std::uint32_t (&words)[4], int j) {
  const int first = j % 2 * 2;
  return {look_up_halves(levels, words[first], j >= 2), look_up_halves(levels, words[first + 1], j >= 2)};
}

// kIq4Levels + 128
__device__ inline uint2 iq4_codes(const std::uint32_t (&words)[4], int j) {
  const std::uint32_t levels[4] = {0x3F2D1801U, 0x766A5D4FU, 0xA6998D81U, 0xF1D9C5B5U};
  return look_up(levels, words, j);
}

template <>
struct PackedWeights<DType::kIQ4_NL> : CodedWeights<PackedWeights<DType::kIQ4_NL>, true> {
  static constexpr int kAlign = 2;
  std::uint32_t words[4];
  float scale;

  __device__ static PackedWeights read(const std::uint8_t* block, int) {
    PackedWeights packed;
    packed.scale = f16_bits_to_f32(read_half<kAlign>(block));
    read_words<kAlign>(block + 2, packed.words);
    return packed;
  }
  __device__ uint2 codes(int j) const { return iq4_codes(words, j); }
  __device__ Scaling scaling(int) const { return {scale, -128.0F * scale}; }
};

// 2^(exponent - 127). The smallest, 0, counts as zero.
__device__ inline float mxfp4_scale(std::uint32_t exponent) { return __uint_as_float(exponent << 23); }

// Bytes from a table of eight, by the lower three bits of a word's first four halves of bytes. Where the fourth is set,
// what is found is replaced by its sign: a table without signs gives zero.
__device__ inline std::uint32_t look_up_unless_signed(std::uint32_t first, std::uint32_t last, std::uint32_t word) {
  std::uint32_t found;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(first), "r"(last), "r"(word));
  return found;
}

// kMxfp4Levels + 12 of a word's first four halves of bytes, as the sum of what two tables have: one for signs that are
// not set, one for others.
class Mxfp4Table {
 public:
  // zero: one that the compiler does not know to be that, and that differs between threads for all it knows; else it
  // moves constants into registers at every use.
  __device__ explicit Mxfp4Table(std::uint32_t zero) : zero_(zero) {}

  __device__ std::uint32_t positive(std::uint32_t word) const {
    return look_up_unless_signed(0x0F0E0D0CU | zero_, 0x18141210U, word);
  }
  // Of a word's opposite: other signs, and other lower bits.
  __device__ std::uint32_t negative(std::uint32_t opposite) const {
    return look_up_unless_signed(0x08060400U | zero_, 0x0C0B0A09U, opposite);
  }
  // Logic has more to do than multipliers, so these invert and join.
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
  std::uint32_t mixed[8];  // kMxfp4Levels + 12 of weights 2 i, 2 i + 16, 2 i + 1, 2 i + 17, as halves of bytes come
  std::uint32_t exponent;
  std::uint32_t zero;

  // zero: as of Mxfp4Table.
  __device__ static PackedWeights read(const std::uint8_t* block, int zero) {
    const auto offset = static_cast<int>(reinterpret_cast<std::uintptr_t>(block) & 3);
    return read_words(block - offset, offset, static_cast<std::uint32_t>(zero));
  }
  // Of a block `offset` bytes behind whole words.
  __device__ static PackedWeights read_words(const std::uint8_t* words, int offset, std::uint32_t zero) {
    PackedWeights packed;
    packed.zero = zero;
    const Mxfp4Table table(zero);
    std::uint32_t aligned[5];  // all of the block, wherever it begins
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

  // A level is exact in bf16, with any power of two: one permutation makes two codes numbers, plus 128, and one
  // multiply-add weights. Those of 2^122 and more become infinite.
  using CodedWeights::eight;
  __device__ void eight(int j, std::uint32_t (&pairs)[4]) const {
    const std::uint32_t twice = exponent * 0x00800080U;  // the scale
    const auto& both = reinterpret_cast<const __nv_bfloat162&>(twice);
    const __nv_bfloat162 scales = __hmul2(both, __float2bfloat162_rn(0.5F));
    const __nv_bfloat162 offsets = __hmul2(both, __float2bfloat162_rn(-70.0F));
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t over = __byte_perm(mixed[j % 2 * 4 + i], 0x43U | zero, j < 2 ? 0x4240 : 0x4341);
      const __nv_bfloat162 weight = __hfma2(reinterpret_cast<const __nv_bfloat162&>(over), scales, offsets);
      pairs[i] = reinterpret_cast<const std::uint32_t&>(weight);
    }
  }
};

// Eight bytes of 32, from 8 j on.
__device__ inline uint2 eight_of(const std::uint32_t (&words)[8], int j) { return {words[2 * j], words[2 * j + 1]}; }
__device__ inline uint2 operator>>(uint2 x, int shift) { return {x.x >> shift, x.y >> shift}; }
__device__ inline uint2 operator<<(uint2 x, int shift) { return {x.x << shift, x.y << shift}; }
__device__ inline uint2 operator&(uint2 x, std::uint32_t mask) { return {x.x & mask, x.y & mask}; }
__device__ inline uint2 operator|(uint2 x, uint2 y) { return {x.x | y.x, x.y | y.y}; }

template <>
struct PackedWeights<DType::kQ2_K> : CodedWeights<PackedWeights<DType::kQ2_K>, false, 16> {
  static constexpr int kAlign = 4;
  std::uint32_t words[8];
  int shift;
  Scaling groups[2];

  __device__ static PackedWeights read(const std::uint8_t* block, int part) {
    PackedWeights packed;
    const std::uint32_t pair = read_half<kAlign>(block + 2 * part);
    std::uint32_t ends[1];
    read_words<kAlign>(block + 80, ends);
    const float scale = low_f16(ends[0]);
    const float minimum = -high_f16(ends[0]);
    packed.groups[0] = {scale * static_cast<float>(pair & 15U), minimum * static_cast<float>(pair >> 4 & 15U)};
    packed.groups[1] = {scale * static_cast<float>(pair >> 8 & 15U), minimum * static_cast<float>(pair >> 12)};
    read_words<kAlign>(block + 16 + part / 4 * 32, packed.words);
    packed.shift = part % 4 * 2;
    return packed;
  }
  __device__ uint2 codes(int j) const { return eight_of(words, j) >> shift & 0x03030303U; }
  __device__ Scaling scaling(int half) const { return groups[half]; }
};

template <>
struct PackedWeights<DType::kQ3_K> : CodedWeights<PackedWeights<DType::kQ3_K>, false, 16> {
  static constexpr int kAlign = 2;
  std::uint32_t words[8];
  std::uint32_t high[8];
  int shift;
  int high_shift;
  Scaling groups[2];

  __device__ static PackedWeights read(const std::uint8_t* block, int part) {
    PackedWeights packed;
    read_words<kAlign>(block, packed.high);
    read_words<kAlign>(block + 32 + part / 4 * 32, packed.words);
    packed.shift = part % 4 * 2;
    packed.high_shift = part;
    // Groups 2 part and 2 part + 1: the lower four bits in halves of bytes 0..7, the upper two in bytes 8..11.
    const std::uint32_t low = read_half<kAlign>(block + 96 + part % 4 * 2) >> (part / 4 * 4);
    const std::uint32_t upper = read_half<kAlign>(block + 104 + part % 2 * 2) >> (part / 2 * 2);
    const std::uint32_t both = (low & 0x0F0FU) | (upper & 0x0303U) << 4;
    const float scale = f16_bits_to_f32(read_half<kAlign>(block + 108));
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const float group = scale * static_cast<float>(static_cast<int>(both >> (8 * i) & 63U) - 32);
      packed.groups[i] = {group, -4.0F * group};
    }
    return packed;
  }
  __device__ uint2 codes(int j) const {
    return (eight_of(words, j) >> shift & 0x03030303U) | (eight_of(high, j) >> high_shift & 0x01010101U) << 2;
  }
  __device__ Scaling scaling(int half) const { return groups[half]; }
};

// Scale and minimum of group g of Q4_K and Q5_K, from the first 16 bytes of their blocks.
__device__ inline Scaling q45_scaling(const std::uint32_t (&head)[4], int g) {
  const std::uint32_t shift = static_cast<std::uint32_t>(g % 4) * 8;
  const std::uint32_t a = head[1] >> shift;
  const std::uint32_t b = head[2] >> shift;
  const std::uint32_t c = head[3] >> shift;
  const std::uint32_t scale = g < 4 ? a & 63U : (c & 15U) | (a >> 2 & 0x30U);
  const std::uint32_t minimum = g < 4 ? b & 63U : (c >> 4 & 15U) | (b >> 2 & 0x30U);
  return {low_f16(head[0]) * static_cast<float>(scale), -high_f16(head[0]) * static_cast<float>(minimum)};
}

template <>
struct PackedWeights<DType::kQ4_K> : CodedWeights<PackedWeights<DType::kQ4_K>, false> {
  static constexpr int kAlign = 16;
  std::uint32_t words[8];
  int shift;
  Scaling group;

  __device__ static PackedWeights read(const std::uint8_t* block, int part) {
    PackedWeights packed;
    std::uint32_t head[4];
    read_words<kAlign>(block, head);
    packed.group = q45_scaling(head, part);
    read_words<kAlign>(block + 16 + part / 2 * 32, packed.words);
    packed.shift = part % 2 * 4;
    return packed;
  }
  __device__ uint2 codes(int j) const { return eight_of(words, j) >> shift & 0x0F0F0F0FU; }
  __device__ Scaling scaling(int) const { return group; }
};

template <>
struct PackedWeights<DType::kQ5_K> : CodedWeights<PackedWeights<DType::kQ5_K>, false> {
  static constexpr int kAlign = 16;
  std::uint32_t words[8];
  std::uint32_t high[8];
  int shift;
  int high_shift;
  Scaling group;

  __device__ static PackedWeights read(const std::uint8_t* block, int part) {
    PackedWeights packed;
    std::uint32_t head[4];
    read_words<kAlign>(block, head);
    packed.group = q45_scaling(head, part);
    read_words<kAlign>(block + 16, packed.high);
    read_words<kAlign>(block + 48 + part / 2 * 32, packed.words);
    packed.shift = part % 2 * 4;
    packed.high_shift = part;
    return packed;
  }
  __device__ uint2 codes(int j) const {
    return (eight_of(words, j) >> shift & 0x0F0F0F0FU) | (eight_of(high, j) >> high_shift & 0x01010101U) << 4;
  }
  __device__ Scaling scaling(int) const { return group; }
};

// Blocks begin at even bytes: the shift that makes whole words of them brings the bits that are wanted to their places
// too.
template <>
struct PackedWeights<DType::kQ6_K> : CodedWeights<PackedWeights<DType::kQ6_K>, false, 16> {
  static constexpr int kAlign = 2;
  std::uint32_t words[9];
  std::uint32_t high[9];
  int shift;
  std::uint32_t high_factor;  // 16 or 4: brings the upper two bits above the lower four
  Scaling groups[2];

  __device__ static PackedWeights read(const std::uint8_t* block, int part) {
    PackedWeights packed;
    const int half = part / 4;
    const int quarter = part % 4;
    const auto off = static_cast<int>(reinterpret_cast<std::uintptr_t>(block) & 2);
    read_words<4>(block - off + 64 * half + 32 * (quarter % 2), packed.words);
    read_words<4>(block - off + 128 + 32 * half, packed.high);
    packed.shift = 8 * off + quarter / 2 * 4;
    packed.high_factor = quarter % 2 == 0 ? 16 : 4;
    const std::uint32_t both = read_half<kAlign>(block + 192 + 2 * part);
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

template <>
struct PackedWeights<DType::kIQ4_XS> : CodedWeights<PackedWeights<DType::kIQ4_XS>, true> {
  static constexpr int kAlign = 8;
  std::uint32_t words[4];
  float scale;

  __device__ static PackedWeights read(const std::uint8_t* block, int part) {
    PackedWeights packed;
    std::uint32_t head[2];
    read_words<kAlign>(block, head);
    const std::uint32_t low = head[1] >> (4 * part) & 15U;
    const std::uint32_t upper = head[0] >> (16 + 2 * part) & 3U;
    packed.scale = low_f16(head[0]) * static_cast<float>(static_cast<int>(low | upper << 4) - 32);
    read_words<kAlign>(block + 8 + 16 * part, packed.words);
    return packed;
  }
  __device__ uint2 codes(int j) const { return iq4_codes(words, j); }
  __device__ Scaling scaling(int) const { return {scale, -128.0F * scale}; }
};

}  // namespace thalweg::cu
