#include "cpu/gated_delta.h"

#include <algorithm>

namespace thalweg::cpu {

void solve_unit_lower(const float* lower, std::int64_t rows, std::int64_t width, float* x, std::int64_t n,
                      float* negated) {
  constexpr std::int64_t kBlock = 16;
  const VectorOps& vec = vector_ops();
  for (std::int64_t begin = 0; begin < rows; begin += kBlock) {
    const std::int64_t end = std::min(rows, begin + kBlock);
    for (std::int64_t i = begin; i < end; ++i) vec.scale(-1.0F, lower + i * width, i, negated + (i - begin) * width);
    if (begin > 0) vec.gemm(end - begin, n, begin, negated, width, 1, x, n, x + begin * n, n, true);
    for (std::int64_t i = begin + 1; i < end; ++i) {
      const float* factors = negated + (i - begin) * width;
      for (std::int64_t m = begin; m < i; ++m) vec.axpy(factors[m], x + m * n, n, x + i * n);
    }
  }
}

void load_state(const ConstTensor& pool, StateLayout layout, std::int64_t slot, std::int64_t head, std::int64_t v,
                std::int64_t k, Orientation orientation, float* state, float* staging) {
  if (!pool.defined() || slot < 0) {
    std::fill_n(state, v * k, 0.0F);
    return;
  }
  const VectorOps& vec = vector_ops();
  const std::int64_t rows = layout == StateLayout::kVK ? v : k;
  const std::int64_t columns = layout == StateLayout::kVK ? k : v;
  const bool same = (layout == StateLayout::kVK) == (orientation == Orientation::kVK);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t staged = i % kStagedRows;
    vec.load(pool.dtype, pool.row(slot, head, i), columns, same ? state + i * columns : staging + staged * columns);
    if (same || (staged + 1 < kStagedRows && i + 1 < rows)) continue;
    vec.transpose(staged + 1, columns, staging, columns, state + i - staged, rows);
  }
}

void store_state(const Tensor& pool, StateLayout layout, std::int64_t slot, std::int64_t head, std::int64_t v,
                 std::int64_t k, Orientation orientation, const float* state, float* staging) {
  if (!pool.defined() || slot < 0) return;
  const VectorOps& vec = vector_ops();
  const std::int64_t rows = layout == StateLayout::kVK ? v : k;
  const std::int64_t columns = layout == StateLayout::kVK ? k : v;
  const bool same = (layout == StateLayout::kVK) == (orientation == Orientation::kVK);
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t staged = i % kStagedRows;
    if (!same && staged == 0) {
      vec.transpose(columns, std::min(kStagedRows, rows - i), state + i, rows, staging, columns);
    }
    vec.store(pool.dtype, same ? state + i * columns : staging + staged * columns, columns, pool.row(slot, head, i));
  }
}

float* state_in_place(const Tensor& pool, StateLayout layout, std::int64_t slot, std::int64_t head) {
  if (!pool.defined() || slot < 0 || pool.dtype != DType::kF32 || layout != StateLayout::kVK) return nullptr;
  if (pool.stride(2) != pool.dim(3)) return nullptr;
  return static_cast<float*>(pool.row(slot, head));
}

void normalize(QkNorm norm, float eps, const ConstTensor& weight, std::int64_t head, std::int64_t k, float* row,
               float* scratch) {
  if (norm == QkNorm::kNone) return;
  const VectorOps& vec = vector_ops();
  const float squares = vec.dot(row, row, k);
  if (norm == QkNorm::kL2) {
    vec.scale(1.0F / std::sqrt(squares + eps), row, k, row);
    return;
  }
  vec.scale(1.0F / std::sqrt(squares / static_cast<float>(k) + eps), row, k, row);
  vec.load(weight.dtype, weight.row(head), k, scratch);
  vec.multiply(row, scratch, k, row);
}

Gate compute_gate(float a, float b, float a_log, float dt_bias) {
  const float x = a + dt_bias;
  const float softplus = x > 20.0F ? x : std::log1p(std::exp(x));
  return {-std::exp(a_log) * softplus, 1.0F / (1.0F + std::exp(-b))};
}

void compute_gates(const GateInputs& gates, const Chunk& chunk, std::int64_t head, float* g, float* beta) {
  const VectorOps& vec = vector_ops();
  const float a_log = load_scalar(gates.a_log, head);
  const float dt_bias = load_scalar(gates.dt_bias, head);
  for (std::int64_t i = 0; i < chunk.length; ++i) {
    float a = 0.0F;
    float b = 0.0F;
    const std::int64_t offset = bytes_of(gates.a.dtype, head);
    vec.load(gates.a.dtype, static_cast<const char*>(gates.a.row(chunk.row, chunk.begin + i)) + offset, 1, &a);
    vec.load(gates.b.dtype, static_cast<const char*>(gates.b.row(chunk.row, chunk.begin + i)) + offset, 1, &b);
    const Gate gate = compute_gate(a, b, a_log, dt_bias);
    g[i] = gate.g;
    beta[i] = gate.beta;
  }
}

void load_gates(const GatedDeltaRuleArgs& args, const Chunk& chunk, std::int64_t head, float* g, float* beta) {
  if (args.gates.a.defined()) {
    compute_gates(args.gates, chunk, head, g, beta);
  } else {
    load_scalars(args.g, chunk, head, g);
    load_scalars(args.beta, chunk, head, beta);
  }
}

}  // namespace thalweg::cpu
