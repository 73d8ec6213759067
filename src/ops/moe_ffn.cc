#include "ops/dispatch.h"
#include "ops/expert_checks.h"

namespace thalweg {

void validate(const MoeFfnArgs& args, Check& check) {
  Dim t{"T"}, e{"E"}, l{"L"}, d{"D"}, i{"I"}, j{"J"};
  check.input("x", args.x, kFloatTypes, t, d);
  check.input("router", args.router, kWeightTypes, e, d);
  check.input("gate", args.gate, kWeightTypes, l, i, d);
  check.input("up", args.up, {args.gate.dtype}, l, i, d);
  check.input("down", args.down, kWeightTypes, l, d, i);
  const int shared = static_cast<int>(args.shared_gate.defined()) + static_cast<int>(args.shared_up.defined()) +
                     static_cast<int>(args.shared_down.defined()) + static_cast<int>(args.shared_router.defined());
  if (!(shared == 0 || shared == 4)) {
    check.fail("shared_gate", "all four tensors of the shared expert or none", std::to_string(shared) + " of them");
  }
  if (shared == 4) {
    check.input("shared_gate", args.shared_gate, kWeightTypes, j, d);
    check.input("shared_up", args.shared_up, kWeightTypes, j, d);
    check.input("shared_down", args.shared_down, kWeightTypes, d, j);
    check.input("shared_router", args.shared_router, kFloatTypes, d);
  }
  if (args.router_bias.defined()) check.input("router_bias", args.router_bias, {DType::kF32}, e);
  check.output("y", args.y, {DType::kF32, args.x.dtype}, t, d);
  if (!(args.top_k >= 1 && args.top_k <= e.value)) {
    check.fail("top_k", "1 to E = " + std::to_string(e.value), std::to_string(args.top_k));
  }
  if (l.value < 1 || l.value > e.value) {
    check.fail("gate", "1 to E=" + std::to_string(e.value) + " experts", to_string(args.gate));
  }
  if (args.first_expert < 0 || args.first_expert > e.value - l.value) {
    check.fail("first_expert", "0 to E - L = " + std::to_string(e.value - l.value), std::to_string(args.first_expert));
  }
  if (!(t.value * args.top_k <= std::int64_t{0x7FFFFFFF} && e.value <= std::int64_t{0x7FFFFFFF})) {
    check.fail("x", "less than 2^31 experts and pairs of token and slot", to_string(args.x));
  }
  check_precision(check, args.precision);
  check_score(check, args.score);
  check_router_bias(check, "router_bias", args.router_bias);
}

THALWEG_OPERATION(moe_ffn, MoeFfnArgs);

}  // namespace thalweg
