#pragma once

#include <cstdint>

#include "thalweg/dtype.h"

namespace thalweg::reference {

// Weight `index` of a run of blocks, to the bit what unpacking gives. Reads the fields of its block from their byte
// offsets, one weight at a time: nothing is shared with src/quant. Any dtype but I32.
float unpack_one(DType dtype, const void* blocks, std::int64_t index);

}  // namespace thalweg::reference
