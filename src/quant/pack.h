#pragma once

#include <cstdint>

#include "quant/blocks.h"
#include "thalweg/dtype.h"

namespace thalweg {

// Packs `count` consecutive values, a multiple of the block size, into any dtype for which can_pack() is true; does
// nothing for others. Rounds to nearest, deterministically. The values should be finite; every block has finite scales
// even if they are not. Scales are f16: values beyond what 65504 can scale saturate.
void pack(DType dtype, const float* values, std::int64_t count, void* blocks);

// The same for one block format, `blocks` of them in a row.
template <class Block>
void pack_blocks(const float* values, std::int64_t blocks, Block* to);

}  // namespace thalweg
