#include "ops/conv_checks.h"
#include "ops/dispatch.h"

namespace thalweg {

void validate(const CausalConv1dUpdateArgs& args, Check& check) {
  Dim b{"B"}, t{"T"}, c{"C"}, window{"W-1"};
  check.input("x", args.x, kFloatTypes, b, t, c);
  check_taps(check, args.weight, args.bias, c, window);
  check_activation(check, args.activation);
  Dim slots{args.state_indices.defined() ? "slots" : "B"};
  if (!args.state_indices.defined()) slots.value = b.value;
  check.output("conv_state", args.conv_state, kFloatTypes, slots, c, window);
  if (args.state_indices.defined()) check.state_indices(args.state_indices, b, slots.value);
  check.output("y", args.y, {args.x.dtype}, b, t, c);
  check.may_alias("y", "x");
}

THALWEG_OPERATION(causal_conv1d_update, CausalConv1dUpdateArgs);

}  // namespace thalweg
