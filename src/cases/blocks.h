#pragma once

#include <cstdint>

#include "cases/random.h"
#include "thalweg/dtype.h"

namespace thalweg::cases {

enum class BlockScales {
  kOrdinary,  // weights of order one
  kEdge,      // zero, subnormal, negative, tiny and large scales in turn; lowest and highest codes
};

// Fills a row with `count` weights' worth of random valid blocks: any codes, finite scales. For plain dtypes, values of
// order one. Any dtype but I32.
void fill_blocks(DType dtype, BlockScales scales, Random& random, void* row, std::int64_t count);

}  // namespace thalweg::cases
