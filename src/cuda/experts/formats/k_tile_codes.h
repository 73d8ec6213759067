#pragma once

// What stream_products.h multiplies of a block format: KTileCodes<kType> reads one weight row's K tile of 256 weights,
// which begins a block. A weight is
//
//   scale code' + first_factor first + second_factor second,    code' = kCodeBias + a multiple of its code
//
// where codes, `first` and `second` are exact in f16, so that the tensor cores multiply all three:
//
//   codes.scale(sub_block, half, bias_bytes)  of the half-th 16 of the sub_block-th 32 weights; both constants
//   codes.bytes(sub_block, t)                 code' - kCodeBias of weights 4 t + i and 16 + 4 t + i, i < 4, one a byte
//   codes.first(t, i)                         of both halves of sub-block 2 t + i; t is the lane's, i a constant
//   codes.second(t, i)                        only if kSecond
//
// For split_products.h, whose codes are bf16 and at most 127 (SmallCodes below), a weight is scale code + offset:
//
//   codes.offset(sub_block, half, scale, bias_bytes)
//
// A byte permutation makes a code f16: 0x6400 is 1024, whose last bit counts one. Where code' comes from higher bits
// than the lowest, the scale and `first` are smaller instead. `bias_bytes` holds what permutations add to codes: 0x64
// in byte 0, the upper bytes of a bf16 and of a float in bytes 2 and 3 (kBiasBytes). It is an argument so that the
// compiler does not know it: it would move a constant into a register at every use.

#include <cuda_fp16.h>

#include "cuda/common/mma.h"
#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

constexpr float kCodeBias = 1024.0F;

template <DType kType>
constexpr std::uint32_t kBiasBytes = 0x43430064U;

// A format's factor of all results.
template <DType kType>
constexpr float kCodesFactor = 1.0F;

template <DType kType>
struct KTileCodes;

// The codes that a kernel reads; kAligned: weight rows begin at multiples of 16 bytes.
template <DType kType, bool kAligned>
struct CodesOf {
  using Type = KTileCodes<kType>;
};

// Codes for split_products.h: kWide where bytes are 128 + a signed code, else they are codes of at most 127.
template <DType kType>
struct SmallCodes {
  using Type = KTileCodes<kType>;
  static constexpr bool kWide = kType == DType::kQ8_0 || kType == DType::kIQ4_NL || kType == DType::kIQ4_XS;
};

// ---- reading

__device__ inline std::uint32_t add_halves(std::uint32_t pair, float summand) {
  const __half2 sum = __hadd2(reinterpret_cast<const __half2&>(pair), __float2half2_rn(summand));
  return reinterpret_cast<const std::uint32_t&>(sum);
}
__device__ inline std::uint32_t scale_halves(std::uint32_t pair, float factor, float summand) {
  const __half2 sum =
      __hfma2(reinterpret_cast<const __half2&>(pair), __float2half2_rn(factor), __float2half2_rn(summand));
  return reinterpret_cast<const std::uint32_t&>(sum);
}

// The word at offset + 4 t, `offset` an even constant, of a tile that begins at a multiple of 16 bytes.
__device__ inline std::uint32_t even_word(const std::uint8_t* tile, int offset, int t) {
  const auto* words = reinterpret_cast<const std::uint32_t*>(tile + offset / 4 * 4 + 4 * t);
  return offset % 4 == 0 ? words[0] : __byte_perm(words[0], words[1], 0x5432);
}

// The words of a tile that begins at any byte.
class ShiftedWords {
 public:
  __device__ explicit ShiftedWords(const std::uint8_t* tile)
      : words_(reinterpret_cast<const std::uint32_t*>(tile - (reinterpret_cast<std::uintptr_t>(tile) & 3))),
        shift_(static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(tile)) * 8) {}
  __device__ std::uint32_t operator[](int word) const {
    return __funnelshift_r(words_[word], words_[word + 1], shift_);  // shifts by the last five bits of shift_
  }
  // Words at bytes 4 t and 16 + 4 t of the 32 bytes from `offset` on.
  __device__ uint2 quarter(int offset, int t) const { return {(*this)[offset / 4 + t], (*this)[offset / 4 + 4 + t]}; }

 private:
  const std::uint32_t* words_;
  std::uint32_t shift_;
};

__device__ inline std::uint32_t read_word(const std::uint8_t* from) {
  return *reinterpret_cast<const std::uint32_t*>(from);
}
// Words at bytes 4 t and 16 + 4 t of 32 bytes.
__device__ inline uint2 read_quarter(const std::uint8_t* from, int t) {
  return {read_word(from + 4 * t), read_word(from + 16 + 4 * t)};
}

// Bytes (0, 2) and (1, 3) of both words as f16, plus 1024.
__device__ inline void bytes_to_pairs(uint2 bytes, std::uint32_t bias_bytes, std::uint32_t (&pairs)[4]) {
#pragma unroll
  for (int i = 0; i < 4; ++i)
    pairs[i] = __byte_perm(i < 2 ? bytes.x : bytes.y, bias_bytes, i % 2 == 0 ? 0x4240 : 0x4341);
}
// Byte `at` of a word as f32, plus 128; a constant; the byte is at most 127.
__device__ inline float biased_byte(std::uint32_t word, int at, std::uint32_t bias_bytes) {
  return __uint_as_float(__byte_perm(word, bias_bytes, 0x7055U | static_cast<std::uint32_t>(at) << 8));
}
// Bytes a and b as f16, plus 1024.
__device__ inline std::uint32_t biased_bytes(std::uint32_t word, int a, int b) {
  return __byte_perm(word, 0x64U, 0x4040U | static_cast<std::uint32_t>(a) | static_cast<std::uint32_t>(b) << 8);
}

// The low nibbles are codes of the first sixteen weights, the high ones of the last.
__device__ inline uint2 both_nibbles(std::uint32_t word) { return {word & 0x0F0F0F0FU, word >> 4 & 0x0F0F0F0FU}; }

// Bytes 2 i and 2 i + 1 as f16, plus 1024: both halves of sub-block 2 t + i, of a word that holds those of sub-blocks 2
// t and 2 t + 1.
__device__ inline std::uint32_t halves_of(std::uint32_t word, int i) { return biased_bytes(word, 2 * i, 2 * i + 1); }

// ---- blocks of 32

// Eight blocks that each begin with a scale in f16; codes are counted from kCenter.
template <DType kType, int kCenter>
struct BlockCodes {
  static constexpr int kGroup = 32;
  static constexpr bool kFirst = true;
  static constexpr bool kSecond = false;
  const std::uint8_t* row;

  __device__ explicit BlockCodes(const std::uint8_t* tile) : row(tile) {}
  // The word at byte offset + 4 t of block `sub_block`.
  __device__ std::uint32_t word(int sub_block, int offset, int t) const {
    return even_word(row, sub_block * kBlockBytes<kType> + offset, t);
  }
  __device__ std::uint32_t half(int sub_block, int offset) const {
    return read_half<2>(row + sub_block * kBlockBytes<kType> + offset);
  }
  __device__ float scale(int sub_block, int, std::uint32_t) const { return f16_bits_to_f32(half(sub_block, 0)); }
  __device__ float offset(int, int, float scale, std::uint32_t) const { return static_cast<float>(-kCenter) * scale; }
  __device__ std::uint32_t first(int t, int i) const { return half(2 * t + i, 0) * 0x10001U; }
  __device__ static float first_factor() { return -kCodeBias - static_cast<float>(kCenter); }
};

// Blocks that also have a minimum.
template <DType kType>
struct LevelledBlockCodes : BlockCodes<kType, 0> {
  using BlockCodes<kType, 0>::BlockCodes;
  static constexpr bool kSecond = true;
  __device__ float offset(int sub_block, int, float, std::uint32_t) const {
    return f16_bits_to_f32(this->half(sub_block, 2));
  }
  __device__ std::uint32_t second(int t, int i) const { return this->half(2 * t + i, 2) * 0x10001U; }
  __device__ static float second_factor() { return 1.0F; }
};

// Codes from a word of nibbles of quarter t and a word of all 32 fifth bits.
__device__ inline uint2 quarter_of_five_bits(std::uint32_t word, std::uint32_t high, int t) {
  const uint2 low = both_nibbles(word);
  return {low.x | spread_fifth_bits(high >> (4 * t)), low.y | spread_fifth_bits(high >> (16 + 4 * t))};
}

}  // namespace thalweg::cu
