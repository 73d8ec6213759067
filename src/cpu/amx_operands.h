#pragma once

// Operands in bf16, prepared with AVX-512: functions of TileOps and Bf16Ops (cpu/tile_ops.h, cpu/bf16_ops.h). x86-64
// only.

#include "cpu/tile_ops.h"

namespace thalweg::cpu {

void amx_pack(DType dtype, const void* const* rows, std::int64_t k, std::uint16_t* tiles);
void amx_decode(const WeightRows& weights, std::int64_t k0, std::int64_t count, const void* ahead,
                std::uint16_t* tiles);
void amx_round(const float* from, std::int64_t n, std::uint16_t* to);
void amx_pair_rows(const float* even, const float* odd, std::int64_t n, std::uint16_t* tiles, std::int64_t tile_stride);
void amx_transpose(const void* from, std::int64_t tiles, void* to);

}  // namespace thalweg::cpu
