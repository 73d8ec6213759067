#pragma once

#include <cstdint>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/weights.h"
#include "decode/state.h"
#include "thalweg/moe.h"
#include "thalweg/nn.h"

namespace thalweg::model {

// What the blocks of one run of T packed tokens of N sequences share, and their scratch memory.
struct Step {
  Stream stream;
  MatmulPrecision precision = MatmulPrecision::kFast;
  bool decode = false;                   // every sequence has one token
  std::vector<std::int32_t> tokens;      // [T]
  std::vector<std::int32_t> positions;   // [T]
  std::vector<std::int32_t> cu_seqlens;  // [N+1]
  std::vector<std::int32_t> slots;       // [N]
  std::vector<std::int32_t> lengths;     // [N], the new tokens included
  HostWorkspace workspace;
  std::vector<float> scratch;

  std::int64_t count() const { return static_cast<std::int64_t>(tokens.size()); }
  std::int64_t sequences() const { return static_cast<std::int64_t>(slots.size()); }

  ConstTensor positions_view() const { return {positions.data(), DType::kI32, {count()}, kCpu}; }
  ConstTensor cu_seqlens_view() const { return {cu_seqlens.data(), DType::kI32, {sequences() + 1}, kCpu}; }
  ConstTensor slots_view() const { return {slots.data(), DType::kI32, {sequences()}, kCpu}; }
  ConstTensor lengths_view() const { return {lengths.data(), DType::kI32, {sequences()}, kCpu}; }

  template <class Args>
  void run(const Args& args) {
    thalweg::run(args, workspace.reserve(workspace_size(args, stream)), stream);
  }

  // y [T,N] = x [T,K] times weight [N,K].
  void multiply(const ConstTensor& x, const ConstTensor& weight, const Tensor& y) {
    LinearArgs args;
    args.x = x;
    args.weight = weight;
    args.y = y;
    args.precision = precision;
    run(args);
  }
};

// Pieces of a step's scratch, one after the other.
class Carver {
 public:
  Carver(Step& step, std::int64_t floats) {
    if (step.scratch.size() < static_cast<std::size_t>(floats)) step.scratch.resize(static_cast<std::size_t>(floats));
    next_ = step.scratch.data();
  }
  Tensor take(std::int64_t rows, std::int64_t columns) {
    const Tensor tensor(next_, DType::kF32, {rows, columns}, kCpu);
    next_ += rows * columns;
    return tensor;
  }

 private:
  float* next_;
};

// The blocks between two norms: x [T,D] to y [T,D], f32.
void gated_delta_layer(const ModelConfig& config, const GatedDeltaWeights& weights, std::size_t layer, StatePool& pool,
                       Step& step, const ConstTensor& x, const Tensor& y);
void attention_layer(const ModelConfig& config, const AttentionWeights& weights, std::size_t layer, StatePool& pool,
                     Step& step, const ConstTensor& x, const Tensor& y);
void dense_ffn(const ModelConfig& config, const DenseWeights& weights, Step& step, const ConstTensor& x,
               const Tensor& y);
// The expert block's operation, but for x and y.
MoeFfnArgs expert_args(const ModelConfig& config, const MoeWeights& weights, MatmulPrecision precision);
void expert_ffn(const ModelConfig& config, const MoeWeights& weights, Step& step, const ConstTensor& x,
                const Tensor& y);

}  // namespace thalweg::model
