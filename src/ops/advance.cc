#include "ops/dispatch.h"

namespace thalweg {

void validate(const AdvanceArgs& args, Check& check) {
  Dim n{"N"}, e{"E"}, slots{"slots"}, c{"C"};
  check.input("tokens", args.tokens, {DType::kI32}, n);
  if (args.end_tokens.defined()) check.input("end_tokens", args.end_tokens, {DType::kI32}, e);
  check.output("ids", args.ids, {DType::kI32}, n);
  check.output("positions", args.positions, {DType::kI32}, n);
  check.output("lengths", args.lengths, {DType::kI32}, n);
  check.output("slots", args.slots, {DType::kI32}, n);
  if (args.history.defined()) check.output("history", args.history, {DType::kI32}, slots, c);
  if (!check.host_values()) return;
  const auto* lengths = static_cast<const std::int32_t*>(args.lengths.data);
  const auto* places = static_cast<const std::int32_t*>(args.slots.data);
  for (std::int64_t i = 0; i < n.value; ++i) {
    if (places[i] < -1) check.fail("slots", "-1 or more", std::to_string(places[i]));
    if (places[i] >= 0 && lengths[i] < 0) check.fail("lengths", "0 or more", std::to_string(lengths[i]));
  }
}

THALWEG_OPERATION(advance, AdvanceArgs);

}  // namespace thalweg
