#pragma once

// Activations of products of codes (stream_products.h): each row is scaled by a power of two, so that f16 keeps eleven
// bits of it whatever its size, and cut into K tiles of 256. A K tile is a record of 288 numbers in f16: the 256
// values, then sums of sixteen values, which multiply the bias of the codes.
//
//   value 32 p + 8 t + i   activation 32 p + 16 (i / 4) + 4 t + (0, 2, 1, 3)[i % 4]: what lane t of four multiplies at
//                          once
//   256 + 8 t + i          the sum of the 16 activations from 64 t + 16 (i % 4) on (i < 4), and the f16 rest of the sum
//
// Sums are those of the rounded values.

#include <cstdint>

namespace thalweg::cu {

constexpr int kRecordValues = 256;
constexpr int kRecordHalves = kRecordValues + 32;  // 16-bit numbers
constexpr int kRecordBytes = kRecordHalves * 2;

// The largest value of a row becomes less than 2^kRowExponent and at least half of that.
constexpr int kRowExponent = 4;

// What activations are multiplied by before they are rounded to f16, and products by after, for the largest magnitude
// among them as bits. Both are normal numbers for the smallest values and for infinities too.
struct RecordScaling {
  float factor;
  float inverse;

  __device__ explicit RecordScaling(unsigned largest) {
    const unsigned exponent = max(largest >> 23, 4U);
    factor = __uint_as_float((253 + kRowExponent - exponent) << 23);
    inverse = __uint_as_float((exponent + 1 - kRowExponent) << 23);
  }
};

// The activation of a K tile that value i of vector `vector` of its record is.
__device__ constexpr int record_source(int vector, int i) {
  return vector / 4 * 32 + i / 4 * 16 + vector % 4 * 4 + (i % 4 == 1 ? 2 : (i % 4 == 2 ? 1 : i % 4));
}

}  // namespace thalweg::cu
