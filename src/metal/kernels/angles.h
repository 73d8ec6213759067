#pragma once

// Cosines and sines of a position times a frequency. Positions go to 2^31, so that the angle in f32 would be off by
// whole radians: it is reduced in integers, exactly but for bits that no f32 sees.

#include "metal/kernels/common.h"

// 1 / (2 pi) in units of 2^-64, 2^-128, 2^-192 and 2^-256.
constant ulong kInverseTurn[4] = {0x28be60db9391054aul, 0x7f09d5f47d4d3770ul, 0x36d8a5664f10e410ul,
                                  0x7f9458eaf7aef158ul};

// The upper 64 bits of a product.
inline ulong high_product(ulong a, ulong b) {
  const ulong a_low = a & 0xFFFFFFFFul;
  const ulong a_high = a >> 32;
  const ulong b_low = b & 0xFFFFFFFFul;
  const ulong b_high = b >> 32;
  const ulong middle = a_high * b_low + (a_low * b_low >> 32);
  const ulong other = a_low * b_high + (middle & 0xFFFFFFFFul);
  return a_high * b_high + (middle >> 32) + (other >> 32);
}

// The 64 bits of 2^exponent / (2 pi) that follow the point and `skipped` more bits; exponent at most 104.
inline ulong turn_bits(int exponent, int skipped) {
  const int first = exponent + skipped;  // below 0: zeros come first
  if (first <= -64) return 0;
  if (first < 0) return kInverseTurn[0] >> -first;
  const int word = first / 64;
  const int shift = first % 64;
  const ulong high = kInverseTurn[word];
  if (shift == 0) return high;
  return high << shift | (word < 3 ? kInverseTurn[word + 1] >> (64 - shift) : 0ul);
}

struct Direction {
  float cosine;
  float sine;
};

// Of the angle position * frequency; position 0 or more.
inline Direction direction_of(int position, float frequency) {
  const uint bits = as_type<uint>(frequency);
  const int biased = int(bits >> 23 & 255u);
  const ulong mantissa = ulong(bits & 0x7FFFFFu) | (biased > 0 ? 0x800000ul : 0ul);
  const int exponent = max(biased, 1) - 150;  // frequency = mantissa 2^exponent
  const ulong steps = mantissa * ulong(position);
  // The fraction of a turn in units of 2^-64; skipped are the bits below 2^-64 of a window that is shifted in.
  const ulong high = turn_bits(exponent, 0);
  const ulong low = turn_bits(exponent, 64);
  const ulong turn = steps * high + high_product(steps, low);
  const ulong shifted = turn + 0x2000000000000000ul;  // quadrants begin an eighth of a turn earlier
  const uint quadrant = uint(shifted >> 62);
  const int rest = int(uint(shifted >> 30) - 0x80000000u);  // in units of 2^-34 of a turn
  const float angle = float(rest) * 3.6572952e-10f;         // 2 pi 2^-34
  const float c = precise::cos(angle);
  const float s = precise::sin(angle);
  Direction result;
  result.cosine = quadrant == 0u ? c : quadrant == 1u ? -s : quadrant == 2u ? -c : s;
  result.sine = quadrant == 0u ? s : quadrant == 1u ? c : quadrant == 2u ? -s : -c;
  if (bits >> 31 != 0u) result.sine = -result.sine;
  return result;
}
