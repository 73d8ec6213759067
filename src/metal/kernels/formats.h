#pragma once

// Weights in GGUF's formats, unpacked to f32 eight at a time (an octet): the scales of every format hold for whole
// octets. Blocks are read as bytes, because they may start at any address.

#include "metal/kernels/common.h"

constant constexpr int kQ4_0 = 4;
constant constexpr int kQ4_1 = 5;
constant constexpr int kQ5_0 = 6;
constant constexpr int kQ5_1 = 7;
constant constexpr int kQ8_0 = 8;
constant constexpr int kQ2_K = 9;
constant constexpr int kQ3_K = 10;
constant constexpr int kQ4_K = 11;
constant constexpr int kQ5_K = 12;
constant constexpr int kQ6_K = 13;
constant constexpr int kIQ4_NL = 14;
constant constexpr int kIQ4_XS = 15;
constant constexpr int kMXFP4 = 16;

constant float kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
// E2M1 floats, doubled.
constant float kMxfp4Levels[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

struct Weights8 {
  float w[8];
};

inline float half_at(device const uchar* bytes) { return float(as_type<half>(ushort(bytes[0] | bytes[1] << 8))); }

// Code i of an octet: low nibbles hold the first half of the block, high nibbles the second.
inline int nibble(device const uchar* codes, int i, bool upper) { return upper ? codes[i] >> 4 : codes[i] & 15; }

// Scale and minimum of group g of Q4_K and Q5_K: 6 bits each in twelve bytes.
inline int group_scale(device const uchar* groups, int g) {
  return g < 4 ? groups[g] & 63 : (groups[g + 4] & 15) | (groups[g - 4] >> 6) << 4;
}
inline int group_minimum(device const uchar* groups, int g) {
  return g < 4 ? groups[g + 4] & 63 : groups[g + 4] >> 4 | (groups[g] >> 6) << 4;
}

// What makes weights of codes: scale code + offset.
struct CodeScale {
  float scale;
  float offset;
};

// Of a block of 32 weights.
inline CodeScale scale_32(device const uchar* block) {
  CodeScale result;
  result.offset = kFormat == kQ4_1 || kFormat == kQ5_1 ? half_at(block + 2) : 0.0f;
  if (kFormat == kMXFP4) {
    // 2^(e - 128), subnormal below 2^-126.
    const uint e = block[0];
    result.scale = as_type<float>(e >= 2 ? (e - 1) << 23 : 0x200000u << e);
  } else {
    result.scale = half_at(block);
  }
  return result;
}

// Of the octet from weight `index` on of a block of 256 weights.
inline CodeScale scale_256(device const uchar* block, int index) {
  CodeScale result;
  result.offset = 0.0f;
  if (kFormat == kQ2_K) {
    const int group = block[index / 16];
    result.scale = half_at(block + 80) * float(group & 15);
    result.offset = -half_at(block + 82) * float(group >> 4);
  } else if (kFormat == kQ3_K) {
    const int g = index / 16;
    const int low = block[96 + g % 8] >> (4 * (g / 8)) & 15;
    const int high = block[104 + g % 4] >> (2 * (g / 4)) & 3;
    result.scale = half_at(block + 108) * float((low | high << 4) - 32);
  } else if (kFormat == kQ6_K) {
    result.scale = half_at(block + 208) * float(as_type<int8_t>(block[192 + index / 16]));
  } else if (kFormat == kIQ4_XS) {
    const int g = index / 32;
    const int low = block[4 + g / 2] >> (4 * (g % 2)) & 15;
    const int high = (block[2] | block[3] << 8) >> (2 * g) & 3;
    result.scale = half_at(block) * float((low | high << 4) - 32);
  } else {
    result.scale = half_at(block) * float(group_scale(block + 4, index / 32));
    result.offset = -half_at(block + 2) * float(group_minimum(block + 4, index / 32));
  }
  return result;
}

// Octet `octet` of a block of 32 weights.
inline Weights8 octet_32(device const uchar* block, int octet, CodeScale scale) {
  Weights8 result;
  const bool upper = octet >= 2;
  const int first = octet % 2 * 8;
  for (int i = 0; i < 8; ++i) {
    float code;
    if (kFormat == kQ4_0) {
      code = float(nibble(block + 2 + first, i, upper) - 8);
    } else if (kFormat == kQ4_1) {
      code = float(nibble(block + 4 + first, i, upper));
    } else if (kFormat == kQ5_0) {
      code = float((nibble(block + 6 + first, i, upper) | (block[2 + octet] >> i & 1) << 4) - 16);
    } else if (kFormat == kQ5_1) {
      code = float(nibble(block + 8 + first, i, upper) | (block[4 + octet] >> i & 1) << 4);
    } else if (kFormat == kQ8_0) {
      code = float(as_type<int8_t>(block[2 + octet * 8 + i]));
    } else if (kFormat == kIQ4_NL) {
      code = kIq4Levels[nibble(block + 2 + first, i, upper)];
    } else {
      code = kMxfp4Levels[nibble(block + 1 + first, i, upper)];
    }
    result.w[i] = scale.scale * code + scale.offset;
  }
  return result;
}

// The octet from weight `index` on of a block of 256 weights.
inline Weights8 octet_256(device const uchar* block, int index, CodeScale scale) {
  Weights8 result;
  const int within = index % 32;
  const int quarter = index % 128 / 32;  // of its half of the block
  const int second = index / 128;        // which half of the block
  for (int i = 0; i < 8; ++i) {
    float code;
    const int l = within + i;
    if (kFormat == kQ2_K) {
      code = float(block[16 + 32 * second + l] >> (2 * quarter) & 3);
    } else if (kFormat == kQ3_K) {
      const int low = block[32 + 32 * second + l] >> (2 * quarter) & 3;
      code = float((low | (block[l] >> (4 * second + quarter) & 1) << 2) - 4);
    } else if (kFormat == kQ4_K) {
      code = float(nibble(block + 16 + index / 64 * 32 + within, i, index % 64 >= 32));
    } else if (kFormat == kQ5_K) {
      const int low = nibble(block + 48 + index / 64 * 32 + within, i, index % 64 >= 32);
      code = float(low | (block[16 + l] >> (index / 32) & 1) << 4);
    } else if (kFormat == kQ6_K) {
      const int low = nibble(block + 64 * second + index % 64, i, index % 128 >= 64);
      code = float((low | (block[128 + 32 * second + l] >> (2 * quarter) & 3) << 4) - 32);
    } else {
      code = kIq4Levels[nibble(block + 8 + index / 32 * 16 + within % 16, i, within >= 16)];
    }
    result.w[i] = scale.scale * code + scale.offset;
  }
  return result;
}

// Blocks of 256 weights, not of 32.
inline bool has_large_blocks() { return kFormat >= kQ2_K && kFormat != kIQ4_NL && kFormat != kMXFP4; }

inline int bytes_of_block() {
  if (kFormat == kQ4_0 || kFormat == kIQ4_NL) return 18;
  if (kFormat == kQ4_1) return 20;
  if (kFormat == kQ5_0) return 22;
  if (kFormat == kQ5_1) return 24;
  if (kFormat == kQ8_0) return 34;
  if (kFormat == kMXFP4) return 17;
  if (kFormat == kQ2_K) return 84;
  if (kFormat == kQ3_K) return 110;
  if (kFormat == kQ4_K) return 144;
  if (kFormat == kQ5_K) return 176;
  if (kFormat == kQ6_K) return 210;
  return 136;
}

inline device const uchar* block_of_octet(device const uchar* row, int octet) {
  return row + int64_t(octet / (has_large_blocks() ? 32 : 4)) * bytes_of_block();
}

// Of octet `octet` of a row; octets 2 i and 2 i + 1 have it in common in every format.
inline CodeScale scale_of(device const uchar* row, int octet) {
  if (kFormat > kBF16) {
    device const uchar* block = block_of_octet(row, octet);
    return has_large_blocks() ? scale_256(block, octet % 32 * 8) : scale_32(block);
  }
  CodeScale none;
  none.scale = 1.0f;
  none.offset = 0.0f;
  return none;
}

// Weights 8 octet .. 8 octet + 7 of a row of k, zeros beyond its end.
inline Weights8 unpack(device const uchar* row, int octet, int k, CodeScale scale) {
  if (kFormat <= kBF16) {
    Weights8 result;
    for (int i = 0; i < 8; ++i) {
      const int index = octet * 8 + i;
      result.w[i] = index < k ? load(row, kFormat, index) : 0.0f;
    }
    return result;
  }
  device const uchar* block = block_of_octet(row, octet);
  return has_large_blocks() ? octet_256(block, octet % 32 * 8, scale) : octet_32(block, octet % 4, scale);
}
