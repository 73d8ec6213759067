#pragma once

#include <bit>
#include <cstdint>

namespace thalweg {

// Conversions of the 16-bit float formats. To 16 bits: round to nearest, ties to even; overflow gives infinity; a NaN
// stays a (quiet) NaN with its sign. From 16 bits: exact, subnormals included.

inline float bf16_to_f32(std::uint16_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16); }

inline std::uint16_t f32_to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7FFFFFFFU) > 0x7F800000U) return static_cast<std::uint16_t>((bits >> 16) | 0x40U);
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16) & 1U)) >> 16);
}

inline float f16_to_f32(std::uint16_t half) {
  // Masks instead of branches, so that loops vectorize.
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000U) << 16;
  const std::uint32_t magnitude = half & 0x7FFFU;
  // Infinity and NaN keep the largest exponent.
  const std::uint32_t special = 0U - static_cast<std::uint32_t>(magnitude >= 0x7C00U);
  const std::uint32_t normal = (magnitude << 13) + (112U << 23) + (special & (112U << 23));
  // Subnormal: magnitude * 2^-24, exact in f32.
  const auto tiny = std::bit_cast<std::uint32_t>(static_cast<float>(static_cast<int>(magnitude)) * 0x1p-24F);
  const std::uint32_t subnormal = 0U - static_cast<std::uint32_t>(magnitude < 0x400U);
  return std::bit_cast<float>(sign | (normal & ~subnormal) | (tiny & subnormal));
}

inline std::uint16_t f32_to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint16_t>((bits >> 16) & 0x8000U);
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  if (magnitude > 0x7F800000U) return static_cast<std::uint16_t>(sign | 0x7E00U | ((magnitude >> 13) & 0x3FFU));
  if (magnitude >= 0x477FF000U) return static_cast<std::uint16_t>(sign | 0x7C00U);  // rounds to 65536 or more
  if (magnitude < 0x38800000U) {
    // Below 2^-14: adding 0.5 leaves the multiple of 2^-24, rounded to even, in the low bits.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return static_cast<std::uint16_t>(sign | (std::bit_cast<std::uint32_t>(shifted) - 0x3F000000U));
  }
  const std::uint32_t rounded = magnitude + 0xFFFU + ((magnitude >> 13) & 1U);
  return static_cast<std::uint16_t>(sign | ((rounded - (112U << 23)) >> 13));
}

inline float round_to_bf16(float value) { return bf16_to_f32(f32_to_bf16(value)); }
inline float round_to_f16(float value) { return f16_to_f32(f32_to_f16(value)); }

}  // namespace thalweg
