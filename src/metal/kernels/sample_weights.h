#pragma once

// Probabilities in integers: Metal has no f64, and the contract wants the token that f64 draws.

#include "metal/kernels/angles.h"
#include "metal/kernels/logit_rows.h"

// 2^63 / k!
constant ulong kExponentialTerms[18] = {0x8000000000000000ul,
                                        0x8000000000000000ul,
                                        0x4000000000000000ul,
                                        0x1555555555555555ul,
                                        0x555555555555555ul,
                                        0x111111111111111ul,
                                        0x2d82d82d82d82dul,
                                        0x6806806806806ul,
                                        0xd00d00d00d00ul,
                                        0x171de3a556c7ul,
                                        0x24fc9f6ef13ul,
                                        0x35cc8acfeaul,
                                        0x47bb63bfeul,
                                        0x5849184eul,
                                        0x64e5d2aul,
                                        0x6b9fcful,
                                        0x6b9fcul,
                                        0x654bul};

// e^((logit - largest) / temperature) in units of 2^-63, 0 below e^-29; off by less than 2^-50.
inline ulong share_of(float logit, float largest, float temperature) {
  // The difference in two floats, exactly; the quotient in three.
  const float high = logit - largest;
  const float back = high - logit;
  const float low = (logit - (high - back)) + (-largest - back);
  const float first = high / temperature;
  if (!(first >= -29.0f)) return 0;
  const float left = fma(-first, temperature, high) + low;
  const float second = left / temperature;
  const float third = fma(-second, temperature, left) / temperature;
  const float scale = 2.8823037615171174e17f;  // 2^58
  const int64_t exponent = int64_t(first * scale) + int64_t(second * scale) + int64_t(third * scale);
  const ulong below = exponent < 0 ? ulong(-exponent) : 0ul;
  // In powers of two, in units of 2^-57: 2^-whole times e^-z, z in units of 2^-64.
  const ulong powers = high_product(below, 0xb8aa3b295c17f0bbul);
  const ulong z = high_product(powers << 7, 0xb17217f7d1cf79abul);
  ulong sum = kExponentialTerms[17];
  for (int k = 16; k >= 0; --k) sum = kExponentialTerms[k] - high_product(z, sum);
  const uint whole = uint(powers >> 57);
  return sum >> whole;
}

// As the contract rounds it: in units of 2^-40.
inline ulong weight_of_share(ulong share) { return (share + 0x400000ul) >> 23; }

// The least integer that is at least `fraction` of `total`; fraction in 0..1.
inline ulong share_of_total(float fraction, ulong total) {
  const uint bits = as_type<uint>(fraction);
  const uint biased = bits >> 23;
  const ulong mantissa = ulong(bits & 0x7FFFFFu) | (biased > 0u ? 0x800000ul : 0ul);
  const uint shift = 150u - max(biased, 1u);  // fraction = mantissa 2^-shift
  const ulong high = high_product(mantissa, total);
  const ulong low = mantissa * total;
  if (shift >= 128u) return mantissa != 0ul && total != 0ul ? 1ul : 0ul;
  if (shift >= 64u) {
    const uint rest = shift - 64u;
    const bool exact = low == 0ul && (high >> rest) << rest == high;
    return (high >> rest) + (exact ? 0ul : 1ul);
  }
  const bool exact = (low >> shift) << shift == low;
  return (high << (64u - shift) | low >> shift) + (exact ? 0ul : 1ul);
}

// A uniform number below 2^53 that depends on seed and position: the host's draw() times 2^53.
inline ulong draw_bits(ulong seed, int position) {
  ulong bits = seed * 0xD1342543DE82EF95ul + (ulong(max(position, 0)) + 1ul) * 0x9E3779B97F4A7C15ul;
  bits = (bits ^ bits >> 30) * 0xBF58476D1CE4E5B9ul;
  bits = (bits ^ bits >> 27) * 0x94D049BB133111EBul;
  bits ^= bits >> 31;
  return bits >> 11;
}
