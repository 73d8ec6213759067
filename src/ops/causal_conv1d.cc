#include "ops/conv_checks.h"
#include "ops/dispatch.h"

namespace thalweg {

void validate(const CausalConv1dArgs& args, Check& check) {
  Dim b{"B"}, t{"T"}, c{"C"}, n{"N"}, window{"W-1"};
  check.input("x", args.x, kFloatTypes, b, t, c);
  check_taps(check, args.weight, args.bias, c, window);
  check_activation(check, args.activation);
  check.cu_seqlens(args.cu_seqlens, b, t, n);

  Dim slots{args.state_indices.defined() ? "slots" : "N"};
  if (!args.state_indices.defined()) slots.value = n.value;
  if (args.initial_state.defined()) check.input("initial_state", args.initial_state, kFloatTypes, slots, c, window);
  if (args.final_state.defined()) {
    if (args.initial_state.defined()) {
      check.output("final_state", args.final_state, {args.initial_state.dtype}, slots, c, window);
    } else {
      check.output("final_state", args.final_state, kFloatTypes, slots, c, window);
    }
    check.may_alias("final_state", "initial_state");
  }
  if (args.state_indices.defined()) {
    if (!slots.bound()) {
      check.fail("state_indices", "a state pool to go with them", "neither initial nor final state");
    }
    check.state_indices(args.state_indices, n, slots.value);
  }
  check.output("y", args.y, {args.x.dtype}, b, t, c);
}

THALWEG_OPERATION(causal_conv1d, CausalConv1dArgs);

}  // namespace thalweg
