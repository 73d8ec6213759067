#include "decode/layers.h"

namespace thalweg::decode {

void dense_ffn(const ModelConfig& config, const DenseWeights& w, Step& step, const ConstTensor& x, const Tensor& y) {
  const std::int64_t count = step.count();
  struct Scratch {
    Tensor gate;  // [T,I]
    Tensor up;    // [T,I]
  };
  const auto [gate, up] = lay_out(step.scratch, [&](Arena& arena) {
    return Scratch{take_matrix(arena, count, config.dense_hidden), take_matrix(arena, count, config.dense_hidden)};
  });
  step.multiply(x, w.gate, gate);
  step.multiply(x, w.up, up);
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
  args.top_k = config.experts_used;
  args.renormalize = config.renormalize;
  args.precision = precision;
  return args;
}

void expert_ffn(const ModelConfig& config, const MoeWeights& w, Step& step, const ConstTensor& x, const Tensor& y) {
  MoeFfnArgs args = expert_args(config, w, step.precision);
  args.x = x;
  args.y = y;
  step.run(args);
}

}  // namespace thalweg::decode
