#pragma once

#include <cstdint>

#include "thalweg/dtype.h"

namespace thalweg::reference {

// Weight `index` of a run of blocks, with the bits that unpacking gives. Reads the fields of its block at their byte
// offsets and shares no code with src/quant. Any dtype but I32.
float unpack_one(DType dtype, const void* blocks, std::int64_t index);

}  // namespace thalweg::reference
