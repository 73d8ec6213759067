#include "decode/layers.h"

namespace thalweg::decode {

void dense_ffn(const ModelConfig& config, const DenseWeights& w, Step& step, const ConstTensor& x, const Tensor& y) {
  const std::int64_t inner = config.dense_hidden;
  const Tensor projected =  // gate | up
      lay_out(step.scratch, [&](Arena& arena) { return step.take(arena, x.dim(0), 2 * inner); });
  const Tensor gate = column_range(projected, 0, inner);
  const Tensor up = column_range(projected, inner, inner);
  if (w.gate_and_up.defined()) {
    step.multiply(x, w.gate_and_up, projected);
  } else {
    step.multiply(x, {{w.gate, gate}, {w.up, up}});
  }
  SwigluArgs args;
  args.gate = gate;
  args.up = up;
  args.y = gate;
  step.run(args);
  step.multiply(gate, w.down, y);
}

MoeFfnArgs expert_args(const ModelConfig& config, const MoeWeights& w, MatmulPrecision precision) {
  MoeFfnArgs args;
  args.router = w.router;
  args.gate = w.gate;
  args.up = w.up;
  args.down = w.down;
  args.shared_gate = w.shared_gate;
  args.shared_up = w.shared_up;
  args.shared_down = w.shared_down;
  args.shared_router = w.shared_router;
  args.first_expert = static_cast<int>(w.first_expert);
  args.top_k = config.experts_used;
  args.renormalize = config.renormalize;
  args.precision = precision;
  return args;
}

void expert_ffn(const ModelConfig& config, const MoeWeights& w, Step& step, const ConstTensor& x, const Tensor& y) {
  MoeFfnArgs args = expert_args(config, w, step.runtime.precision());
  args.x = x;
  args.y = y;
  step.scratch.reserve(0);  // the mixer's is no longer needed
  step.run(args);
}

void ffn_layer(const ModelConfig& config, const checkpoint::LayerWeights& weights, bool sparse, Step& step,
               const Tensor& h, const Tensor& y, const Tensor& x) {
  RmsNormArgs norm;
  norm.x = h;
  norm.delta = y;
  norm.sum = h;
  norm.y = x;
  norm.weight = weights.post_norm;
  norm.eps = config.norm_eps;
  norm.weight_plus_one = config.norm_plus_one;
  step.norm(norm);
  if (sparse) {
    expert_ffn(config, weights.moe, step, x, y);
  } else {
    dense_ffn(config, weights.dense, step, x, y);
  }
  step.sum_over_ranks(y);
}

}  // namespace thalweg::decode
