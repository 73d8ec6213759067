#pragma once

// Building blocks that the CPU kernels of the gated delta rule share.

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/sequences.h"
#include "cpu/scratch.h"
#include "cpu/vector.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::cpu {

inline std::int64_t key_head(HeadMap map, std::int64_t value_head, std::int64_t hk, std::int64_t hv) {
  return map == HeadMap::kTiled ? value_head % hk : value_head / (hv / hk);
}

inline float resolve_scale(const std::optional<float>& scale, std::int64_t k) {
  return scale ? *scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(k)));
}

// One head of a chunk's tokens, [B,T,H,D] -> f32 [length,D].
inline void load_head(const ConstTensor& tensor, const Chunk& chunk, std::int64_t head, float* to) {
  const VectorOps& vec = vector_ops();
  const std::int64_t width = tensor.dim(3);
  for (std::int64_t i = 0; i < chunk.length; ++i) {
    vec.load(tensor.dtype, tensor.row(chunk.row, chunk.begin + i, head), width, to + i * width);
  }
}

inline void store_head(const Tensor& tensor, const Chunk& chunk, std::int64_t head, const float* from) {
  const VectorOps& vec = vector_ops();
  const std::int64_t width = tensor.dim(3);
  for (std::int64_t i = 0; i < chunk.length; ++i) {
    vec.store(tensor.dtype, from + i * width, width, tensor.row(chunk.row, chunk.begin + i, head));
  }
}

// One head's per-token scalars, [B,T,H] f32 -> [length].
inline void load_scalars(const ConstTensor& tensor, const Chunk& chunk, std::int64_t head, float* to) {
  for (std::int64_t i = 0; i < chunk.length; ++i) {
    to[i] = static_cast<const float*>(tensor.row(chunk.row, chunk.begin + i))[head];
  }
}

// One head's scalar parameter of any float dtype, [H].
inline float load_scalar(const ConstTensor& tensor, std::int64_t head) {
  float value = 0.0F;
  vector_ops().load(tensor.dtype, tensor.row(head), 1, &value);
  return value;
}

// rows[length,D] -> columns[D,width], zero beyond the length.
inline void transpose_padded(const float* rows, std::int64_t length, std::int64_t d, std::int64_t width,
                             float* columns) {
  vector_ops().transpose(length, d, rows, d, columns, width);
  for (std::int64_t j = 0; j < d; ++j) {
    for (std::int64_t i = length; i < width; ++i) columns[j * width + i] = 0.0F;
  }
}

// matrix[i,j] *= exp(g_i - g_j) for j below i (and at it, with the diagonal), 0 elsewhere.
inline void apply_decay(float* matrix, std::int64_t length, std::int64_t width, const float* g, bool diagonal) {
  for (std::int64_t i = 0; i < length; ++i) {
    const std::int64_t end = diagonal ? i + 1 : i;
    vector_ops().multiply_by_decay(g[i], g, end, matrix + i * width);
    std::fill(matrix + i * width + end, matrix + (i + 1) * width, 0.0F);
  }
}

// x[rows,n] = (I + lower)^-1 x in place by forward substitution, 16 rows at a time; lower [rows,width]; its diagonal
// and what is above are not read. `negated` is scratch for 16 rows of `width`.
void solve_unit_lower(const float* lower, std::int64_t rows, std::int64_t width, float* x, std::int64_t n,
                      float* negated);

// Load and store a head's state in f32, [V,K] or [K,V] by `orientation`. A slot of -1 or an absent pool loads zeros and
// stores nothing. `staging` has state_staging() floats.
enum class Orientation { kVK, kKV };
constexpr std::int64_t kStagedRows = 16;
constexpr std::int64_t state_staging(std::int64_t v, std::int64_t k) { return kStagedRows * (k > v ? k : v); }
void load_state(const ConstTensor& pool, StateLayout layout, std::int64_t slot, std::int64_t head, std::int64_t v,
                std::int64_t k, Orientation orientation, float* state, float* staging);
void store_state(const Tensor& pool, StateLayout layout, std::int64_t slot, std::int64_t head, std::int64_t v,
                 std::int64_t k, Orientation orientation, const float* state, float* staging);

// The head's state in the pool if it is contiguous [V,K] in f32, so that a kernel can update it in place; else null.
float* state_in_place(const Tensor& pool, StateLayout layout, std::int64_t slot, std::int64_t head);

// The states [HV,V,K] of one batch row and token or chunk, [B,T or NC,HV,V,K], as a pool of one slot.
template <class AnyTensor>
AnyTensor state_pool(const AnyTensor& states, std::int64_t b, std::int64_t t) {
  AnyTensor pool = states;
  pool.data = states.row(b, t);
  pool.rank = 4;
  pool.shape = {1, states.dim(2), states.dim(3), states.dim(4)};
  pool.strides = {0, states.stride(2), states.stride(3), states.stride(4)};
  return pool;
}

// Normalizes one q or k row in place by `norm`; `weight` may be absent.
void normalize(QkNorm norm, float eps, const ConstTensor& weight, std::int64_t head, std::int64_t k, float* row,
               float* scratch);

// g and beta of one raw gate.
struct Gate {
  float g;
  float beta;
};
Gate compute_gate(float a, float b, float a_log, float dt_bias);
// One head's gates of a chunk's tokens, from g and beta or from raw gates.
void load_gates(const GatedDeltaRuleArgs& args, const Chunk& chunk, std::int64_t head, float* g, float* beta);
void compute_gates(const GateInputs& gates, const Chunk& chunk, std::int64_t head, float* g, float* beta);

// One value head of sequence n token by token, from its initial to its final state. Takes sequence_floats() of scratch.
constexpr std::int64_t sequence_floats(std::int64_t v, std::int64_t k) {
  return arena_floats(k * v, k, k, v, v, state_staging(v, k));
}
void run_sequence(const GatedDeltaRuleArgs& args, const Tensor& snapshots, const Sequences& sequences, std::int64_t n,
                  std::int64_t h, Arena scratch);

// The end of a fused step's token: o [V] through the gated norm, if there is one, to y. z has V floats of scratch.
void store_step_output(const GatedDeltaPrepStepArgs& args, const Chunk& token, std::int64_t head, float* o, float* z,
                       float* staging);

// The fused step with packed sequences, replays and drafts.
std::size_t replay_step_workspace(const GatedDeltaPrepStepArgs& args, const Stream& stream);
void run_replay_step(const GatedDeltaPrepStepArgs& args, Workspace workspace, const Stream& stream);

}  // namespace thalweg::cpu
