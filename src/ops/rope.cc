#include <cmath>

#include "ops/dispatch.h"

namespace thalweg {

void validate(const RopeArgs& args, Check& check) {
  Dim t{"T"}, h{"H"}, d{"D"};
  check.input("x", args.x, kFloatTypes, t, h, d);
  check.input("positions", args.positions, {DType::kI32}, t);
  check.output("y", args.y, {args.x.dtype}, t, h, d);
  check.may_alias("y", "x");
  if (!(args.rotary_dim % 2 == 0 && args.rotary_dim >= 2 && args.rotary_dim <= d.value)) {
    check.fail("rotary_dim", "an even number from 2 to D = " + std::to_string(d.value),
               std::to_string(args.rotary_dim));
  }
  if (!(args.theta > 0.0F && std::isfinite(args.theta))) {
    check.fail("theta", "a positive finite number", std::to_string(args.theta));
  }
  if (!(args.scale > 0.0F && std::isfinite(args.scale))) {
    check.fail("scale", "a positive finite number", std::to_string(args.scale));
  }
  if (args.norm_weight.defined()) check.input("norm_weight", args.norm_weight, kFloatTypes, d);
  if (!(args.norm_eps >= 0.0F)) check.fail("norm_eps", "0 or more", std::to_string(args.norm_eps));
  Dim half{"rotary_dim/2", args.rotary_dim / 2};
  if (args.frequencies.defined()) check.input("frequencies", args.frequencies, {DType::kF32}, half);
  if (!check.host_values()) return;
  const auto* positions = static_cast<const std::int32_t*>(args.positions.data);
  for (std::int64_t i = 0; i < t.value; ++i) {
    if (positions[i] < 0) check.fail("positions", "values of 0 or more", std::to_string(positions[i]));
  }
  if (!args.frequencies.defined()) return;
  const auto* frequencies = static_cast<const float*>(args.frequencies.data);
  for (std::int64_t i = 0; i < half.value; ++i) {
    if (!std::isfinite(frequencies[i])) check.fail("frequencies", "finite values", std::to_string(frequencies[i]));
  }
}

THALWEG_OPERATION(rope, RopeArgs);

}  // namespace thalweg
