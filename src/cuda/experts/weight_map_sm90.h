#pragma once

#include <cuda.h>

#include <cstdint>

#include "cuda/experts/tiled.h"

namespace thalweg::cu::sm90 {

// Makes a tensor map of weights [E,N,row_bytes]. Every P-th row must begin at a multiple of 16 bytes: the map is
// [E,N/P,P rows], in boxes of `box_rows` / P of these by `box_bytes`. Returns P, or 0 if no map can describe the
// weights.
int make_weight_map(const WeightView& weight, int n, std::int64_t row_bytes, int box_rows, int box_bytes,
                    CUtensorMap& map);

}  // namespace thalweg::cu::sm90
