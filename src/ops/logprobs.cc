#include <limits>

#include "ops/dispatch.h"

namespace thalweg {

void validate(const LogprobsArgs& args, Check& check) {
  Dim n{"N"}, v{"V"}, k{"K"};
  check.input("logits", args.logits, {DType::kF32}, n, v);
  if (v.value < 1 || v.value > std::numeric_limits<std::int32_t>::max()) {
    check.fail("logits", "1 to 2^31 - 1 tokens", to_string(args.logits));
  }
  if (args.logprob.defined() && !args.tokens.defined()) check.fail("tokens", "I32 [N] with logprob", "nothing");
  if (args.tokens.defined()) {
    check.input("tokens", args.tokens, {DType::kI32}, n);
    check.output("logprob", args.logprob, {DType::kF32}, n);
  }
  if (args.top_tokens.defined() || args.top_logprobs.defined()) {
    check.output("top_tokens", args.top_tokens, {DType::kI32}, n, k);
    check.output("top_logprobs", args.top_logprobs, {DType::kF32}, n, k);
    if (k.value < 1 || k.value > v.value) {
      check.fail("top_tokens", "1 to V = " + std::to_string(v.value) + " tokens", to_string(args.top_tokens));
    }
  }
  if (!check.host_values() || !args.tokens.defined()) return;
  const auto* tokens = static_cast<const std::int32_t*>(args.tokens.data);
  for (std::int64_t i = 0; i < n.value; ++i) {
    if (tokens[i] < -1 || tokens[i] >= v.value) {
      check.fail("tokens", "-1 to " + std::to_string(v.value - 1),
                 std::to_string(tokens[i]) + " for row " + std::to_string(i));
    }
  }
}

THALWEG_OPERATION(logprobs, LogprobsArgs);

}  // namespace thalweg
