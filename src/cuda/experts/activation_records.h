#pragma once

// Activations as products of codes take them (stream_products.h): a row is scaled by a power of two, so that f16 holds
// it with eleven bits whatever its size, and cut into slices of 256. A slice is a record of 288 numbers in f16: the 256
// values, then the sums of sixteen that scale what codes are counted from.
//
//   value 32 p + 8 t + i   activation 32 p + 16 (i / 4) + 4 t + (0, 2, 1, 3)[i % 4]: what lane t of four multiplies at
//                          once
//   256 + 8 t + i          the sum of the 16 activations from 64 t + 16 (i % 4) on (i < 4), and what f16 leaves of it
//
// Sums are those of the rounded values.

#include <cstdint>

namespace thalweg::cu {

constexpr int kRecordValues = 256;
constexpr int kRecordHalves = kRecordValues + 32;  // 16-bit numbers
constexpr int kRecordBytes = kRecordHalves * 2;

// The largest of a row becomes less than 2^kRowExponent and at least half of that.
constexpr int kRowExponent = 4;

// Where in a slice value i of the piece of eight at `piece` comes from.
__device__ constexpr int record_source(int piece, int i) {
  return piece / 4 * 32 + i / 4 * 16 + piece % 4 * 4 + (i % 4 == 1 ? 2 : (i % 4 == 2 ? 1 : i % 4));
}

}  // namespace thalweg::cu
