#include <cmath>

#include "ops/dispatch.h"

namespace thalweg {

void validate(const RouteTopKArgs& args, Check& check) {
  Dim t{"T"}, e{"E"}, s{"S"};
  check.input("router_logits", args.router_logits, kFloatTypes, t, e);
  if (args.bias.defined()) check.input("bias", args.bias, {DType::kF32}, e);
  check.output("expert_ids", args.expert_ids, {DType::kI32}, t, s);
  check.output("expert_weights", args.expert_weights, {DType::kF32}, t, s);
  if (!(s.value >= 1 && s.value <= e.value)) {
    check.fail("expert_ids", "1 to E = " + std::to_string(e.value) + " slots per token", to_string(args.expert_ids));
  }
  if (!(args.score == RouterScore::kSoftmax || args.score == RouterScore::kSigmoid)) {
    check.fail("score", "RouterScore::kSoftmax or kSigmoid", "neither");
  }
  if (e.value > std::int64_t{0x7FFFFFFF}) {
    check.fail("router_logits", "less than 2^31 experts", to_string(args.router_logits));
  }
  if (!args.bias.defined() || !check.host_values()) return;
  const auto* bias = static_cast<const float*>(args.bias.data);
  for (std::int64_t i = 0; i < e.value; ++i) {
    if (std::isfinite(bias[i])) continue;
    check.fail("bias", "finite numbers", std::to_string(bias[i]) + " at [" + std::to_string(i) + "]");
  }
}

THALWEG_OPERATION(route_top_k, RouteTopKArgs);

}  // namespace thalweg
