#pragma once

// What products of codes take of the block formats (stream_products.h): SliceCodes<kType> is one weight row's slice of
// 256. A weight is
//
//   scale code' + first_factor first + second_factor second,    code' = kCodeOver + a multiple of its code
//
// with codes and the numbers `first` and `second` exact in f16, so that all three are for the matrix units:
//
//   codes.scale(part, half, over)  of the half-th 16 of the part-th 32 weights; both constants
//   codes.bytes(part, t)           of these, code' - kCodeOver of 4 t .. 4 t + 3 and 16 + 4 t .., one in a byte
//   codes.first(t, i)              of the two halves of part 2 t + i; t is the lane's, i a constant
//   codes.second(t, i)             only if kSecond
//
// A byte becomes f16 by a permutation: 0x6400 is 1024, whose last place is one. Where code' is taken from higher bits
// than the lowest, the scale and `first` are smaller instead. `over` has what permutations add to bytes: 0x64 below,
// the upper byte of a float on top (kOver). It is an argument since the compiler must not know it: it moves what it
// knows into a register at every use.

#include <cuda_fp16.h>

#include "cuda/common/mma.h"
#include "cuda/experts/formats/weights.h"

namespace thalweg::cu {

constexpr float kCodeOver = 1024.0F;

// ---- pieces of the formats

__device__ inline std::uint32_t add_halves(std::uint32_t pair, float summand) {
  const __half2 sum = __hadd2(reinterpret_cast<const __half2&>(pair), __float2half2_rn(summand));
  return reinterpret_cast<const std::uint32_t&>(sum);
}
__device__ inline std::uint32_t scale_halves(std::uint32_t pair, float factor, float summand) {
  const __half2 sum =
      __hfma2(reinterpret_cast<const __half2&>(pair), __float2half2_rn(factor), __float2half2_rn(summand));
  return reinterpret_cast<const std::uint32_t&>(sum);
}

// The word at an even constant `offset` plus 4 t from where a slice begins that begins at a multiple of 16.
__device__ inline std::uint32_t even_word(const std::uint8_t* slice, int offset, int t) {
  const auto* words = reinterpret_cast<const std::uint32_t*>(slice + offset / 4 * 4 + 4 * t);
  return offset % 4 == 0 ? words[0] : __byte_perm(words[0], words[1], 0x5432);
}

// Words of a slice that begins anywhere, at multiples of 4 from there.
class ShiftedWords {
 public:
  __device__ explicit ShiftedWords(const std::uint8_t* slice)
      : words_(reinterpret_cast<const std::uint32_t*>(slice - (reinterpret_cast<std::uintptr_t>(slice) & 3))),
        shift_(static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(slice)) * 8) {}
  __device__ std::uint32_t operator[](int word) const {
    return __funnelshift_r(words_[word], words_[word + 1], shift_);  // by the last five bits of shift_
  }
  // Words 4 t and 16 + 4 t (in bytes) of the 32 bytes from `offset` on.
  __device__ uint2 quarter(int offset, int t) const { return {(*this)[offset / 4 + t], (*this)[offset / 4 + 4 + t]}; }

 private:
  const std::uint32_t* words_;
  std::uint32_t shift_;
};

__device__ inline std::uint32_t read_word(const std::uint8_t* from) {
  return *reinterpret_cast<const std::uint32_t*>(from);
}
// Words 4 t and 16 + 4 t (in bytes) of 32 bytes.
__device__ inline uint2 read_quarter(const std::uint8_t* from, int t) {
  return {read_word(from + 4 * t), read_word(from + 16 + 4 * t)};
}

template <DType kType>
constexpr std::uint32_t kOver = 0x43000064U;
template <>
constexpr std::uint32_t kOver<DType::kQ6_K> = 0x47000064U;

// Bytes (0, 2), (1, 3) of both words as f16: plus 1024.
__device__ inline void bytes_to_pairs(uint2 bytes, std::uint32_t over, std::uint32_t (&pairs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) pairs[i] = __byte_perm(i < 2 ? bytes.x : bytes.y, over, i % 2 == 0 ? 0x4240 : 0x4341);
}
// Byte `at` of a word, a constant, up to 127: plus 128.
__device__ inline float byte_over_128(std::uint32_t word, int at, std::uint32_t over) {
  return __uint_as_float(__byte_perm(word, over, 0x7055U | static_cast<std::uint32_t>(at) << 8));
}
// Bytes a and b as f16: plus 1024.
__device__ inline std::uint32_t bytes_over_1024(std::uint32_t word, int a, int b) {
  return __byte_perm(word, 0x64U, 0x4040U | static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b) << 8);
}

// Halves of bytes: the low ones are codes of the first sixteen, the high ones of the last.
__device__ inline uint2 both_nibbles(std::uint32_t word) { return {word & 0x0F0F0F0FU, word >> 4 & 0x0F0F0F0FU}; }

// ---- blocks of 32

// A scale in f16 at the beginning of each of eight blocks; codes are counted from kCenter.
template <DType kType, int kCenter>
struct BlockCodes {
  static constexpr int kGroup = 32;
  static constexpr bool kFirst = true;
  static constexpr bool kSecond = false;
  const std::uint8_t* row;

  __device__ explicit BlockCodes(const std::uint8_t* slice) : row(slice) {}
  // The word 4 t of what begins `offset` bytes into a block.
  __device__ std::uint32_t word(int part, int offset, int t) const {
    return even_word(row, part * kBlockBytes<kType> + offset, t);
  }
  __device__ std::uint32_t half(int part, int offset) const {
    return read_half<2>(row + part * kBlockBytes<kType> + offset);
  }
  __device__ float scale(int part, int, std::uint32_t) const { return f16_bits_to_f32(half(part, 0)); }
  __device__ std::uint32_t first(int t, int i) const { return half(2 * t + i, 0) * 0x10001U; }
  __device__ static float first_factor() { return -kCodeOver - static_cast<float>(kCenter); }
};

template <DType kType>
struct SliceCodes;

template <>
struct SliceCodes<DType::kQ4_0> : BlockCodes<DType::kQ4_0, 8> {
  using BlockCodes::BlockCodes;
  __device__ uint2 bytes(int part, int t) const { return both_nibbles(word(part, 2, t)); }
};

// With a minimum of its own.
template <DType kType>
struct LevelledBlockCodes : BlockCodes<kType, 0> {
  using BlockCodes<kType, 0>::BlockCodes;
  static constexpr bool kSecond = true;
  __device__ std::uint32_t second(int t, int i) const { return this->half(2 * t + i, 2) * 0x10001U; }
  __device__ static float second_factor() { return 1.0F; }
};

template <>
struct SliceCodes<DType::kQ4_1> : LevelledBlockCodes<DType::kQ4_1> {
  using LevelledBlockCodes::LevelledBlockCodes;
  __device__ uint2 bytes(int part, int t) const { return both_nibbles(word(part, 4, t)); }
};

// A word of lower bits of quarter t, the fifth bits of all 32.
__device__ inline uint2 quarter_of_five_bits(std::uint32_t word, std::uint32_t high, int t) {
  const uint2 low = both_nibbles(word);
  return {low.x | spread_fifth_bits(high >> (4 * t)), low.y | spread_fifth_bits(high >> (16 + 4 * t))};
}

template <>
struct SliceCodes<DType::kQ5_0> : BlockCodes<DType::kQ5_0, 16> {
  using BlockCodes::BlockCodes;
  __device__ uint2 bytes(int part, int t) const { return quarter_of_five_bits(word(part, 6, t), word(part, 2, 0), t); }
};

template <>
struct SliceCodes<DType::kQ5_1> : LevelledBlockCodes<DType::kQ5_1> {
  using LevelledBlockCodes::LevelledBlockCodes;
  __device__ uint2 bytes(int part, int t) const { return quarter_of_five_bits(word(part, 8, t), word(part, 4, 0), t); }
};

template <>
struct SliceCodes<DType::kQ8_0> : BlockCodes<DType::kQ8_0, 128> {
  using BlockCodes::BlockCodes;
  __device__ uint2 bytes(int part, int t) const {
    return {word(part, 2, t) ^ 0x80808080U, word(part, 18, t) ^ 0x80808080U};
  }
};

// kIq4Levels + 128 of the words' low and high nibbles.
__device__ inline uint2 iq4_bytes(std::uint32_t word) {
  const std::uint32_t levels[4] = {0x3F2D1801U, 0x766A5D4FU, 0xA6998D81U, 0xF1D9C5B5U};
  const uint2 nibbles = both_nibbles(word);
  return {look_up_four(levels, nibbles.x), look_up_four(levels, nibbles.y)};
}

template <>
struct SliceCodes<DType::kIQ4_NL> : BlockCodes<DType::kIQ4_NL, 128> {
  using BlockCodes::BlockCodes;
  __device__ uint2 bytes(int part, int t) const { return iq4_bytes(word(part, 2, t)); }
};

// What results are multiplied by besides.
template <DType kType>
constexpr float kCodesFactor = 1.0F;
template <>
constexpr float kCodesFactor<DType::kMXFP4> = 16384.0F;

// Bits of `set` where the mask's are, else of `clear`, as one instruction. Of the same in C++ the compiler makes two:
// it masks what is shifted, before and behind.
__device__ inline std::uint32_t choose_bits(std::uint32_t mask, std::uint32_t set, std::uint32_t clear) {
  std::uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xCA;" : "=r"(bits) : "r"(mask), "r"(set), "r"(clear));
  return bits;
}

// Levels and not codes, as f16 (pairs() for bytes()), so that nothing is added to them: the bits of a level, below
// three zeros of the exponent, are 2^-14 of it. Slices begin at multiples of kAlign.
template <int kAlign>
struct Mxfp4Codes {
  static constexpr int kGroup = 32;
  static constexpr bool kFirst = false;
  static constexpr bool kSecond = false;
  const std::uint8_t* row;

  __device__ explicit Mxfp4Codes(const std::uint8_t* slice) : row(slice) {}
  __device__ float scale(int part, int, std::uint32_t) const {
    return mxfp4_scale(row[part * kBlockBytes<DType::kMXFP4>]);
  }
  __device__ void pairs(int part, int t, std::uint32_t (&pairs)[4]) const {
    const std::uint32_t codes = word(part * kBlockBytes<DType::kMXFP4> + 1, t);
    // Upper bytes of f16 numbers: of the low halves of bytes and of the high ones. Signs that are not of their half
    // fall among the bits that are taken from the levels.
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
struct SliceCodes<DType::kMXFP4> : Mxfp4Codes<1> {
  using Mxfp4Codes::Mxfp4Codes;
};

// ---- blocks of 256

// Scales (and minima) of 6 bits as bytes: of parts 0..3 and 4..7.
struct SixBits {
  std::uint32_t scales[2];
  std::uint32_t minima[2];

  __device__ explicit SixBits(const std::uint32_t (&head)[4]) {
    scales[0] = head[1] & 0x3F3F3F3FU;
    scales[1] = (head[3] & 0x0F0F0F0FU) | (head[1] >> 2 & 0x30303030U);
    minima[0] = head[2] & 0x3F3F3F3FU;
    minima[1] = (head[3] >> 4 & 0x0F0F0F0FU) | (head[2] >> 2 & 0x30303030U);
  }
  // Of part 2 t + i, twice, over 1024.
  __device__ static std::uint32_t pair(const std::uint32_t (&words)[2], int t, int i) {
    const std::uint32_t word = t < 2 ? words[0] : words[1];
    const auto at = static_cast<std::uint32_t>(t % 2 * 2 + i);
    return __byte_perm(word, 0x64U, 0x4040U | at * 0x0101U);
  }
};

// Q4_K and Q5_K. kSpread: what code' of odd parts is a multiple by.
template <DType kType, int kSpread>
struct SuperBlockCodes {
  static constexpr int kGroup = 32;
  static constexpr bool kFirst = true;
  static constexpr bool kSecond = true;
  const std::uint8_t* row;
  float d;
  float minimum;
  SixBits six;

  __device__ explicit SuperBlockCodes(const std::uint8_t* slice) : SuperBlockCodes(slice, head_of(slice)) {}
  __device__ float scale(int part, int, std::uint32_t over) const {
    const float factor = part % 2 == 0 ? d : d / kSpread;
    return fmaf(byte_over_128(six.scales[part / 4], part % 4, over), factor, -128.0F * factor);
  }
  __device__ std::uint32_t first(int t, int i) const {
    constexpr float kPart = 1.0F / kSpread;
    const std::uint32_t pair = SixBits::pair(six.scales, t, i);
    return i == 0 || kSpread == 1 ? add_halves(pair, -1024.0F) : scale_halves(pair, kPart, -1024.0F * kPart);
  }
  __device__ std::uint32_t second(int t, int i) const { return add_halves(SixBits::pair(six.minima, t, i), -1024.0F); }
  __device__ float first_factor() const { return -kCodeOver * d; }
  __device__ float second_factor() const { return -minimum; }

 private:
  struct Head {
    std::uint32_t words[4];
  };
  __device__ static Head head_of(const std::uint8_t* slice) {
    Head head;
    read_words<16>(slice, head.words);
    return head;
  }
  __device__ SuperBlockCodes(const std::uint8_t* slice, const Head& head)
      : row(slice), d(low_f16(head.words[0])), minimum(high_f16(head.words[0])), six(head.words) {}
};

template <>
struct SliceCodes<DType::kQ4_K> : SuperBlockCodes<DType::kQ4_K, 16> {
  using SuperBlockCodes::SuperBlockCodes;
  // Codes of odd parts stay in the high halves of their bytes.
  __device__ uint2 bytes(int part, int t) const {
    return read_quarter(row + 16 + part / 2 * 32, t) & (part % 2 == 0 ? 0x0F0F0F0FU : 0xF0F0F0F0U);
  }
};

template <>
struct SliceCodes<DType::kQ5_K> : SuperBlockCodes<DType::kQ5_K, 1> {
  using SuperBlockCodes::SuperBlockCodes;
  __device__ uint2 bytes(int part, int t) const {
    const uint2 low = read_quarter(row + 48 + part / 2 * 32, t) >> (part % 2 * 4) & 0x0F0F0F0FU;
    const uint2 high = read_quarter(row + 16, t) >> part & 0x01010101U;
    return low | high << 4;
  }
};

// Bytes 2 i and 2 i + 1 of a word: the halves of part 2 t + i where the word has those of 2 t and 2 t + 1.
__device__ inline std::uint32_t halves_of(std::uint32_t word, int i) { return bytes_over_1024(word, 2 * i, 2 * i + 1); }

template <>
struct SliceCodes<DType::kQ2_K> {
  static constexpr int kGroup = 16;
  static constexpr bool kFirst = true;
  static constexpr bool kSecond = true;
  const std::uint8_t* row;
  float d;
  float minimum;

  __device__ explicit SliceCodes(const std::uint8_t* slice) : row(slice) {
    const std::uint32_t ends = read_word(slice + 80);
    d = low_f16(ends);
    minimum = high_f16(ends);
  }
  __device__ float scale(int part, int half, std::uint32_t over) const {
    const std::uint32_t scales = read_word(row + part / 2 * 4) & 0x0F0F0F0FU;
    return fmaf(byte_over_128(scales, part % 2 * 2 + half, over), d, -128.0F * d);
  }
  __device__ uint2 bytes(int part, int t) const {
    return read_quarter(row + 16 + part / 4 * 32, t) >> (part % 4 * 2) & 0x03030303U;
  }
  __device__ std::uint32_t first(int t, int i) const {
    return add_halves(halves_of(read_word(row + 4 * t) & 0x0F0F0F0FU, i), -1024.0F);
  }
  __device__ std::uint32_t second(int t, int i) const {
    return add_halves(halves_of(read_word(row + 4 * t) >> 4 & 0x0F0F0F0FU, i), -1024.0F);
  }
  __device__ float first_factor() const { return -kCodeOver * d; }
  __device__ float second_factor() const { return -minimum; }
};

template <>
struct SliceCodes<DType::kQ3_K> {
  static constexpr int kGroup = 16;
  static constexpr bool kFirst = true;
  static constexpr bool kSecond = false;
  ShiftedWords words;
  float d;
  std::uint32_t head[3];  // the lower four bits of the scales in halves of bytes 0..7, the upper two in bytes 8..11

  __device__ explicit SliceCodes(const std::uint8_t* slice)
      : words(slice), d(f16_bits_to_f32(read_half<2>(slice + 108))), head{words[24], words[25], words[26]} {}
  // The scales of four groups plus 32, `four` of 0..3.
  __device__ std::uint32_t scales(int four) const {
    return ((four % 2 == 0 ? head[0] : head[1]) >> (four / 2 * 4) & 0x0F0F0F0FU) | (head[2] >> (2 * four) & 0x03030303U)
                                                                                       << 4;
  }
  __device__ float scale(int part, int half, std::uint32_t over) const {
    return fmaf(byte_over_128(scales(part / 2), part % 2 * 2 + half, over), d, -160.0F * d);
  }
  __device__ uint2 bytes(int part, int t) const {
    const uint2 low = words.quarter(32 + part / 4 * 32, t) >> (part % 4 * 2) & 0x03030303U;
    const uint2 high = words.quarter(0, t) >> part & 0x01010101U;
    return low | high << 2;
  }
  __device__ std::uint32_t first(int t, int i) const { return add_halves(halves_of(scales(t), i), -1056.0F); }
  __device__ float first_factor() const { return (-kCodeOver - 4.0F) * d; }
};

template <>
struct SliceCodes<DType::kQ6_K> {
  static constexpr int kGroup = 16;
  static constexpr bool kFirst = true;
  static constexpr bool kSecond = false;
  ShiftedWords words;
  float d;

  __device__ explicit SliceCodes(const std::uint8_t* slice)
      : words(slice), d(f16_bits_to_f32(read_half<2>(slice + 208))) {}
  __device__ float scale(int part, int half, std::uint32_t over) const {
    // Exact: d has eleven bits, the factor nine.
    const std::uint32_t scales = words[48 + part / 2] ^ 0x80808080U;
    const auto at = static_cast<std::uint32_t>(part % 2 * 2 + half);
    return fmaf(__uint_as_float(__byte_perm(scales, over, 0x7505U | at << 4)), d, -32896.0F * d);
  }
  __device__ uint2 bytes(int part, int t) const {
    const int half = part / 4;
    const int quarter = part % 4;
    const uint2 low = words.quarter(64 * half + 32 * (quarter % 2), t) >> (quarter / 2 * 4) & 0x0F0F0F0FU;
    const uint2 high = words.quarter(128 + 32 * half, t) >> (quarter * 2) & 0x03030303U;
    return low | high << 4;
  }
  __device__ std::uint32_t first(int t, int i) const {
    return add_halves(halves_of(words[48 + t] ^ 0x80808080U, i), -1152.0F);
  }
  __device__ float first_factor() const { return (-kCodeOver - 32.0F) * d; }
};

template <>
struct SliceCodes<DType::kIQ4_XS> {
  static constexpr int kGroup = 32;
  static constexpr bool kFirst = true;
  static constexpr bool kSecond = false;
  const std::uint8_t* row;
  float d;
  std::uint32_t low;    // the lower four bits of the scales
  std::uint32_t upper;  // the upper two

  __device__ explicit SliceCodes(const std::uint8_t* slice) : row(slice) {
    std::uint32_t head[2];
    read_words<8>(slice, head);
    d = low_f16(head[0]);
    upper = head[0] >> 16;
    low = head[1];
  }
  __device__ std::uint32_t scale_plus_32(int part) const {
    return (low >> (4 * part) & 15U) | (upper >> (2 * part) & 3U) << 4;
  }
  __device__ float scale(int part, int, std::uint32_t) const {
    return fmaf(__uint_as_float(0x43000000U | scale_plus_32(part) << 16), d, -160.0F * d);
  }
  __device__ uint2 bytes(int part, int t) const { return iq4_bytes(read_word(row + 8 + 16 * part + 4 * t)); }
  __device__ std::uint32_t first(int t, int i) const {
    return add_halves(scale_plus_32(2 * t + i) * 0x10001U | 0x64006400U, -1056.0F);
  }
  __device__ float first_factor() const { return (-kCodeOver - 128.0F) * d; }
};

}  // namespace thalweg::cu
