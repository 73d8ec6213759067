#pragma once

// Weights in units, for products of rows: the octets of a row that have scales in common, so that a lane loads those
// once. They are unpacked in pairs: two octets whose codes lie in the nibbles of the same bytes, where a format has
// such, else two neighbors.

#include "metal/kernels/formats.h"

constant int kLanePairs [[function_constant(44)]];  // pairs of a unit that one lane has

struct UnitScales {
  CodeScale of[2];  // of the pairs' first and second octets
};

struct OctetPair {
  Weights8 of[2];
};

// Whether the nibbles of a byte are codes of one group of 32 weights, 16 apart.
inline bool shares_bytes_in_32() {
  return has_large_blocks() ? kFormat == kIQ4_XS : kFormat > kBF16 && kFormat != kQ8_0;
}
// Whether they are codes of two groups, 32 apart.
inline bool shares_bytes_in_64() { return kFormat == kQ4_K || kFormat == kQ5_K; }

inline int pairs_of_unit() {
  if (shares_bytes_in_64()) return 4;
  return shares_bytes_in_32() || kFormat == kQ8_0 ? 2 : 1;
}
inline int units_of_block() { return (has_large_blocks() ? 16 : 2) / pairs_of_unit(); }

// The octet of a row that is the first or second one of a pair.
inline int octet_of(int unit, int pair, int second) {
  const int first = unit * pairs_of_unit() * 2;
  if (shares_bytes_in_64()) return first + pair + 4 * second;
  return shares_bytes_in_32() ? first + pair + 2 * second : first + 2 * pair + second;
}

// Of two neighboring groups of 32 weights of a block of Q4_K or Q5_K, each byte loaded once.
inline UnitScales scales_of_64(device const uchar* block, int within) {
  const float scale = half_at(block);
  const float minimum = half_at(block + 2);
  device const uchar* groups = block + 4 + within % 2 * 2;
  UnitScales scales;
  for (int second = 0; second < 2; ++second) {
    const int a = groups[second];
    const int b = groups[second + 4];
    int group_scale = a & 63;
    int group_minimum = b & 63;
    if (within >= 2) {
      const int c = groups[second + 8];
      group_scale = (c & 15) | (a >> 6) << 4;
      group_minimum = c >> 4 | (b >> 6) << 4;
    }
    scales.of[second].scale = scale * float(group_scale);
    scales.of[second].offset = -minimum * float(group_minimum);
  }
  return scales;
}

inline device const uchar* block_of_unit(device const uchar* row, int unit) {
  return row + int64_t(unit / units_of_block()) * bytes_of_block();
}

inline UnitScales unit_scales(device const uchar* row, int unit) {
  if (shares_bytes_in_64()) return scales_of_64(block_of_unit(row, unit), unit % units_of_block());
  UnitScales scales;
  scales.of[0] = scales.of[1] = scale_of(row, octet_of(unit, 0, 0));
  return scales;
}

// Bytes before a block's codes, of the formats that share bytes within 32 weights.
inline int codes_begin() {
  if (kFormat == kMXFP4) return 1;
  if (kFormat == kQ4_1) return 4;
  if (kFormat == kQ5_0) return 6;
  return kFormat == kQ5_1 || kFormat == kIQ4_XS ? 8 : 2;
}

// What a nibble stands for; `fifth` is the fifth bit of its code, 0 where codes have four.
inline float code_of(int nibble_code, int fifth) {
  if (kFormat == kQ4_0) return float(nibble_code - 8);
  if (kFormat == kQ5_0) return float((nibble_code | fifth << 4) - 16);
  if (kFormat == kIQ4_NL || kFormat == kIQ4_XS) return kIq4Levels[nibble_code];
  if (kFormat == kMXFP4) return kMxfp4Levels[nibble_code];
  return float(nibble_code | fifth << 4);
}

// Pair `pair` of a unit of a row of k weights, zeros beyond its end.
inline OctetPair unpack_pair(device const uchar* row, int unit, int pair, thread const UnitScales& scales, int k) {
  OctetPair result;
  if (!shares_bytes_in_32() && !shares_bytes_in_64()) {
    for (int second = 0; second < 2; ++second) {
      result.of[second] = unpack(row, octet_of(unit, pair, second), k, scales.of[second]);
    }
    return result;
  }
  device const uchar* block = block_of_unit(row, unit);
  const int within = unit % units_of_block();
  int begin = codes_begin() + within * 16;
  int fifths[2] = {0, 0};
  if (shares_bytes_in_64()) begin = (kFormat == kQ4_K ? 16 : 48) + within * 32;
  if (kFormat == kQ5_0 || kFormat == kQ5_1) {
    for (int second = 0; second < 2; ++second) fifths[second] = block[codes_begin() - 4 + pair + 2 * second];
  }
  for (int i = 0; i < 8; ++i) {
    const int byte = block[begin + pair * 8 + i];
    int fifth[2] = {fifths[0] >> i & 1, fifths[1] >> i & 1};
    if (kFormat == kQ5_K) {
      const int bits = block[16 + pair * 8 + i] >> (2 * within);
      fifth[0] = bits & 1;
      fifth[1] = bits >> 1 & 1;
    }
    result.of[0].w[i] = scales.of[0].scale * code_of(byte & 15, fifth[0]) + scales.of[0].offset;
    result.of[1].w[i] = scales.of[1].scale * code_of(byte >> 4, fifth[1]) + scales.of[1].offset;
  }
  return result;
}
