#include "ops/dispatch.h"
#include "ops/expert_checks.h"

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
  check_score(check, args.score);
  if (e.value > std::int64_t{0x7FFFFFFF}) {
    check.fail("router_logits", "less than 2^31 experts", to_string(args.router_logits));
  }
  check_router_bias(check, "bias", args.bias);
}

THALWEG_OPERATION(route_top_k, RouteTopKArgs);

}  // namespace thalweg
