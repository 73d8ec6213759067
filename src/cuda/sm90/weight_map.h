#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/tiled_matmul.h"

namespace thalweg::cu::sm90 {

// Describes weights [E,N,row_bytes] to the copy engine, in boxes of `box_rows` rows by `box_bytes`. False if it cannot
// read them: their rows have to begin at multiples of 16 bytes.
bool make_weight_map(const WeightView& weight, int n, std::int64_t row_bytes, int box_rows, int box_bytes,
                     CUtensorMap& map);

}  // namespace thalweg::cu::sm90
