#include "cpu/expert_matmul.h"

#include "cpu/tile_matmul.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {

std::string q8_reason(MatmulPrecision precision, DType weight) {
  if (precision != MatmulPrecision::kFast) return "the precision requires f32 activations";
  if (!is_block_format(weight)) return std::string(dtype_name(weight)) + " weights are not in a block format";
  return {};
}

std::string q8_remark() { return "activations rounded to 8 bits per 32 values, NMSE at most 2e-4"; }

std::string tile_reason(MatmulPrecision precision, DType weight) {
  if (precision != MatmulPrecision::kFast) return "the precision requires f32 activations";
  if (!has_tiles(weight)) return std::string(dtype_name(weight)) + " weights are not rounded";
  if (tile_ops() == nullptr) return "needs AMX with bf16, and the AVX-512 instruction set";
  return {};
}

std::string tile_remark() { return "activations and weights rounded to bf16, NMSE at most 1e-5"; }

std::string exact_remark(MatmulPrecision precision, DType weight) {
  if (uses_q8(precision, weight)) return "f32 activations; the precision also allows 8 bits";
  return "f32 activations";
}

Activations::Activations(const ConstTensor& x, bool q8, Arena& arena) : x_(x), q8_(q8) {
  rows_i_ = x.dim(0);
  if (x.rank == 3) rows_j_ = x.dim(1);
  allocate(arena);
}

Activations::Activations(const float* x, std::int64_t rows, std::int64_t k, bool q8, Arena& arena)
    : x_(x, DType::kF32, {rows, k}, kCpu), q8_(q8), rows_i_(rows) {
  allocate(arena);
}

void Activations::allocate(Arena& arena) {
  const std::int64_t k = x_.dim(x_.rank - 1);
  copied_ = q8_ || x_.dtype != DType::kF32;
  if (!copied_) {
    data_ = static_cast<const float*>(x_.data);
    outer_ = x_.stride(0);
    inner_ = x_.rank == 3 ? x_.stride(1) : 0;
    return;
  }
  // Whole cache lines, so that no two threads write to one.
  row_floats_ = ((q8_ ? q8_row_floats(k) : k) + 15) / 16 * 16;
  copy_ = arena.take<float>(rows_i_ * rows_j_ * row_floats_);
  data_ = copy_;
  outer_ = rows_j_ * row_floats_;
  inner_ = x_.rank == 3 ? row_floats_ : 0;
}

void Activations::prepare(const Stream& stream) const {
  if (!copied_) return;
  const std::int64_t k = x_.dim(x_.rank - 1);
  parallel_for(stream, rows_i_ * rows_j_, static_cast<double>(k) * tuning::kElementNs, [&](std::int64_t task, int) {
    const std::int64_t i = task / rows_j_;
    const void* from = x_.rank == 3 ? x_.row(i, task % rows_j_) : x_.row(i);
    float* to = copy_ + task * row_floats_;
    if (!q8_) {
      vector_ops().load(x_.dtype, from, k, to);
    } else {
      matmul_ops().quantize(x_.dtype, from, k, to);
    }
  });
}

}  // namespace thalweg::cpu
