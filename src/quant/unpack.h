#pragma once

#include <cstdint>

#include "quant/blocks.h"
#include "thalweg/dtype.h"

namespace thalweg {

// Unpacks `count` consecutive weights, a multiple of the block size, to f32. Any dtype but I32, which is left alone.
// `blocks` may lie at any address. Bit-exact: the products and differences of each format's formula, each rounded.
void unpack(DType dtype, const void* blocks, std::int64_t count, float* values);

// The same for one block format, `blocks` of them in a row.
template <class Block>
void unpack_blocks(const Block* from, std::int64_t blocks, float* values);

}  // namespace thalweg
