// The formats' definitions, weight by weight. Products and differences of floats are computed in double and rounded to
// float: the results of float arithmetic, without contraction by the compiler.

#include "reference/quant.h"

#include <cmath>
#include <cstring>

#include "core/float16.h"

namespace thalweg::reference {
namespace {

using Byte = unsigned char;

std::uint16_t word(const Byte* at) { return static_cast<std::uint16_t>(at[0] + 256 * at[1]); }
double half(const Byte* at) { return f16_to_f32(word(at)); }
int low_nibble(Byte byte) { return byte % 16; }
int high_nibble(Byte byte) { return byte / 16; }
int bits(int value, int first, int count) { return (value >> first) % (1 << count); }

float times(double a, double b) { return static_cast<float>(a * b); }
float plus(double a, double b) { return static_cast<float>(a + b); }

// Formats with 32 weights keep 0..15 in the low nibbles of 16 bytes and 16..31 in the high ones.
int nibble_of_32(const Byte* codes, int w) { return w < 16 ? low_nibble(codes[w]) : high_nibble(codes[w - 16]); }
int bit_of_32(const Byte* high, int w) { return bits(high[w / 8], w % 8, 1); }

int iq4_level(int code) {
  static constexpr int kLevels[] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
  return kLevels[code];
}

// E2M1: sign, two bits of exponent with bias 1, one bit of mantissa.
double e2m1(int code) {
  const int exponent = bits(code, 1, 2);
  const int mantissa = bits(code, 0, 1);
  const double magnitude = exponent == 0 ? 0.5 * mantissa : std::ldexp(1.0 + 0.5 * mantissa, exponent - 1);
  return code >= 8 && magnitude > 0 ? -magnitude : magnitude;
}

float q4_0(const Byte* block, int w) { return times(half(block), nibble_of_32(block + 2, w) - 8); }

float q4_1(const Byte* block, int w) { return plus(times(half(block), nibble_of_32(block + 4, w)), half(block + 2)); }

float q5_0(const Byte* block, int w) {
  return times(half(block), nibble_of_32(block + 6, w) + 16 * bit_of_32(block + 2, w) - 16);
}

float q5_1(const Byte* block, int w) {
  return plus(times(half(block), nibble_of_32(block + 8, w) + 16 * bit_of_32(block + 4, w)), half(block + 2));
}

float q8_0(const Byte* block, int w) {
  const int code = block[2 + w];
  return times(half(block), code < 128 ? code : code - 256);
}

float iq4_nl(const Byte* block, int w) { return times(half(block), iq4_level(nibble_of_32(block + 2, w))); }

float mxfp4(const Byte* block, int w) {
  return times(std::ldexp(1.0, block[0] - 127), e2m1(nibble_of_32(block + 1, w)));
}

// scales 0, codes 16, scale 80, minimum 82
float q2_k(const Byte* block, int w) {
  const int code = bits(block[16 + 32 * (w / 128) + w % 32], 2 * (w / 32 % 4), 2);
  const Byte group = block[w / 16];
  const float scaled = times(times(half(block + 80), low_nibble(group)), code);
  return plus(scaled, -static_cast<double>(times(half(block + 82), high_nibble(group))));
}

// high bits 0, codes 32, scales 96, scale 108
float q3_k(const Byte* block, int w) {
  const int low = bits(block[32 + 32 * (w / 128) + w % 32], 2 * (w / 32 % 4), 2);
  const int high = bits(block[w % 32], w / 32, 1);
  const int g = w / 16;
  const Byte* scales = block + 96;
  const int group_low = g < 8 ? low_nibble(scales[g]) : high_nibble(scales[g - 8]);
  const int group = group_low + 16 * bits(scales[8 + g % 4], 2 * (g / 4), 2);
  return times(times(half(block + 108), group - 32), low + 4 * high - 4);
}

// Twelve bytes that hold eight 6-bit scales and eight 6-bit minimums.
int q45_scale(const Byte* packed, int g) {
  return g < 4 ? bits(packed[g], 0, 6) : low_nibble(packed[8 + g - 4]) + 16 * bits(packed[g - 4], 6, 2);
}
int q45_minimum(const Byte* packed, int g) {
  return g < 4 ? bits(packed[4 + g], 0, 6) : high_nibble(packed[8 + g - 4]) + 16 * bits(packed[g], 6, 2);
}

float q45_k(const Byte* block, int w, int code) {
  const float scaled = times(times(half(block), q45_scale(block + 4, w / 32)), code);
  return plus(scaled, -static_cast<double>(times(half(block + 2), q45_minimum(block + 4, w / 32))));
}

// scale 0, minimum 2, scales 4, codes 16
float q4_k(const Byte* block, int w) {
  return q45_k(block, w, bits(block[16 + 32 * (w / 64) + w % 32], w / 32 % 2 * 4, 4));
}

// scale 0, minimum 2, scales 4, high bits 16, codes 48
float q5_k(const Byte* block, int w) {
  const int low = bits(block[48 + 32 * (w / 64) + w % 32], w / 32 % 2 * 4, 4);
  return q45_k(block, w, low + 16 * bits(block[16 + w % 32], w / 32, 1));
}

// low bits 0, high bits 128, scales 192, scale 208
float q6_k(const Byte* block, int w) {
  const int low = bits(block[64 * (w / 128) + w % 64], w / 64 % 2 * 4, 4);
  const int high = bits(block[128 + 32 * (w / 128) + w % 32], 2 * (w / 32 % 4), 2);
  const int group = block[192 + w / 16];
  return times(times(half(block + 208), group < 128 ? group : group - 256), low + 16 * high - 32);
}

// scale 0, high bits of the scales 2, low bits 4, codes 8
float iq4_xs(const Byte* block, int w) {
  const int g = w / 32;
  const int low = bits(block[4 + g / 2], g % 2 * 4, 4);
  const int group = low + 16 * bits(word(block + 2), 2 * g, 2);
  return times(times(half(block), group - 32), iq4_level(nibble_of_32(block + 8 + 16 * g, w % 32)));
}

}  // namespace

float unpack_one(DType dtype, const void* blocks, std::int64_t index) {
  const DTypeInfo info = dtype_info(dtype);
  const auto* block = static_cast<const Byte*>(blocks) + index / info.block_size * info.block_bytes;
  const auto w = static_cast<int>(index % info.block_size);
  switch (dtype) {
    case DType::kF32: {
      float value = 0;
      std::memcpy(&value, block, sizeof(value));
      return value;
    }
    case DType::kF16:
      return f16_to_f32(word(block));
    case DType::kBF16:
      return bf16_to_f32(word(block));
    case DType::kI32:
      return 0;
    case DType::kQ4_0:
      return q4_0(block, w);
    case DType::kQ4_1:
      return q4_1(block, w);
    case DType::kQ5_0:
      return q5_0(block, w);
    case DType::kQ5_1:
      return q5_1(block, w);
    case DType::kQ8_0:
      return q8_0(block, w);
    case DType::kQ2_K:
      return q2_k(block, w);
    case DType::kQ3_K:
      return q3_k(block, w);
    case DType::kQ4_K:
      return q4_k(block, w);
    case DType::kQ5_K:
      return q5_k(block, w);
    case DType::kQ6_K:
      return q6_k(block, w);
    case DType::kIQ4_NL:
      return iq4_nl(block, w);
    case DType::kIQ4_XS:
      return iq4_xs(block, w);
    case DType::kMXFP4:
      return mxfp4(block, w);
  }
  return 0;
}

}  // namespace thalweg::reference
