#pragma once

// Weights for cases. Block formats are made of random bytes with sane scales, never packed from floats: every code and
// every group scale occurs, and nothing depends on our own packing.

#include <vector>

#include "cases/memory.h"
#include "cases/random.h"

namespace thalweg::cases {

// Valid blocks of `count` weights of about 0.05.
void fill_blocks(DType dtype, void* blocks, std::int64_t count, Random& random);

// A weight tensor of any dtype but I32.
Tensor make_weights(Memory& memory, DType dtype, std::vector<std::int64_t> shape, Random& random);
// The same, quickly, for gigabytes: rows are pieces of a few random megabytes.
Tensor make_large_weights(Memory& memory, DType dtype, std::vector<std::int64_t> shape, Random& random);

// Every dtype that weights may have, and those of them that are block formats.
std::vector<DType> weight_types();
std::vector<DType> block_types();

}  // namespace thalweg::cases
