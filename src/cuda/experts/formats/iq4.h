#pragma once

// What IQ4_NL and IQ4_XS share: nibbles are indices into kIq4Levels, sixteen signed bytes.

#include "cuda/experts/formats/k_tile_codes.h"
#include "cuda/experts/formats/packed_weights.h"

namespace thalweg::cu {

// Looks up four nibbles, one in a byte, in a table of sixteen bytes.
__device__ inline std::uint32_t look_up_four(const std::uint32_t (&levels)[4], std::uint32_t nibbles_in_bytes) {
  const std::uint32_t halves = __byte_perm(nibbles_in_bytes | nibbles_in_bytes >> 4, 0, 0x4420);  // packed into 16 bits
  const std::uint32_t in_half = halves & 0x7777U;
  const std::uint32_t which = 0x3210U | (halves & 0x8888U) >> 1;
  return __byte_perm(__byte_perm(levels[0], levels[1], in_half), __byte_perm(levels[2], levels[3], in_half), which);
}
// The same for the four low or the four high nibbles of a word. The compiler computes what both share once.
__device__ inline std::uint32_t look_up_nibbles(const std::uint32_t (&levels)[4], std::uint32_t word, bool high) {
  const std::uint32_t in_half = word & 0x77777777U;
  const std::uint32_t which = 0x32103210U | (word & 0x88888888U) >> 1;
  // The low and high nibbles of two bytes, in order.
  const auto two_bytes = [&](int shift) {
    const std::uint32_t at = in_half >> shift;
    return __byte_perm(__byte_perm(levels[0], levels[1], at), __byte_perm(levels[2], levels[3], at), which >> shift);
  };
  return __byte_perm(two_bytes(0), two_bytes(16), high ? 0x7531 : 0x6420);
}
// Eight levels of 16 bytes of nibbles, in the order of nibbles().
__device__ inline uint2 look_up(const std::uint32_t (&levels)[4], const std::uint32_t (&words)[4], int j) {
  const int first = j % 2 * 2;
  return {look_up_nibbles(levels, words[first], j >= 2), look_up_nibbles(levels, words[first + 1], j >= 2)};
}

// kIq4Levels + 128
__device__ inline uint2 iq4_codes(const std::uint32_t (&words)[4], int j) {
  const std::uint32_t levels[4] = {0x3F2D1801U, 0x766A5D4FU, 0xA6998D81U, 0xF1D9C5B5U};
  return look_up(levels, words, j);
}

// kIq4Levels + 128 of the low and of the high nibbles.
__device__ inline uint2 iq4_bytes(std::uint32_t word) {
  const std::uint32_t levels[4] = {0x3F2D1801U, 0x766A5D4FU, 0xA6998D81U, 0xF1D9C5B5U};
  const uint2 nibbles = both_nibbles(word);
  return {look_up_four(levels, nibbles.x), look_up_four(levels, nibbles.y)};
}

}  // namespace thalweg::cu
