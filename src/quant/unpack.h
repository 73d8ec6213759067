#pragma once

#include <cstdint>

#include "quant/blocks.h"
#include "thalweg/dtype.h"

namespace thalweg {

// Unpacks `count` consecutive weights, a multiple of the block size, to f32. Does nothing for I32. `blocks`
// may have any address. Bit-exact: each product and difference of a format's formula is rounded.
void unpack(DType dtype, const void* blocks, std::int64_t count, float* values);

// The same for one block format, `blocks` of them in a row.
template <class Block>
void unpack_blocks(const Block* from, std::int64_t blocks, float* values);

}  // namespace thalweg
