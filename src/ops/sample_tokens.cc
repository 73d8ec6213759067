#include <limits>
#include <vector>

#include "core/sampling.h"
#include "core/sequences.h"
#include "ops/dispatch.h"

namespace thalweg {
namespace {

void check_logits(std::span<const float> logits, const std::string& of_sequence, const Check& check) {
  if (has_probabilities(logits)) return;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] < std::numeric_limits<float>::infinity()) continue;
    check.fail("logits", "numbers", std::to_string(logits[i]) + " for token " + std::to_string(i) + of_sequence);
  }
  check.fail("logits", "a number", "none" + of_sequence);
}

// Everything that only the host can read, row by row.
void check_row(const SampleTokensArgs& args, std::int64_t n, const Check& check, std::vector<float>& adjusted) {
  const std::int32_t slot = static_cast<std::int32_t>(state_slot(args.slots, n));
  const std::string of_sequence = args.logits.dim(0) > 1 ? " of sequence " + std::to_string(n) : "";
  if (slot < -1 || (args.history.defined() && slot >= args.history.dim(0))) {
    check.fail("slots", args.history.defined() ? "-1 to " + std::to_string(args.history.dim(0) - 1) : "-1 or more",
               std::to_string(slot) + of_sequence);
  }
  if (slot < 0) return;
  if (args.lengths.defined()) {
    const std::int32_t length = static_cast<const std::int32_t*>(args.lengths.data)[n];
    if (length < 0 || (args.history.defined() && length > args.history.dim(1))) {
      check.fail("lengths", args.history.defined() ? "0 to C = " + std::to_string(args.history.dim(1)) : "0 or more",
                 std::to_string(length) + of_sequence);
    }
  }
  const Sampling sampling = sampling_of(args, n);
  check_sampling(sampling, SampleTokensArgs::kName);
  std::span logits(static_cast<const float*>(args.logits.row(n)), static_cast<std::size_t>(args.logits.dim(1)));
  check_logits(logits, of_sequence, check);
  const std::span<const std::int32_t> recent = penalized_tokens(args, n, sampling);
  const std::span<const std::uint32_t> allowed = allowed_tokens(args, n);
  if (recent.empty() && allowed.empty()) return;
  adjusted.resize(logits.size());
  if (!recent.empty()) {
    penalize(logits, recent, sampling.repeat_penalty, adjusted);
    logits = adjusted;
    check_logits(logits, of_sequence, check);
  }
  if (allowed.empty()) return;
  keep_allowed(logits, allowed, adjusted);
  if (!has_probabilities(adjusted)) {
    check.fail("allowed", "a token whose logit is above -infinity", "none" + of_sequence);
  }
}

}  // namespace

void validate(const SampleTokensArgs& args, Check& check) {
  Dim n{"N"}, v{"V"}, slots{"slots"}, c{"C"}, two{"2", 2};
  constexpr std::int64_t kBits = 32;
  const auto optional = [&](std::string_view name, const ConstTensor& tensor, DType dtype, auto&... dims) {
    if (tensor.defined()) check.input(name, tensor, {dtype}, dims...);
  };
  check.input("logits", args.logits, {DType::kF32}, n, v);
  if (v.value < 1 || v.value > std::numeric_limits<std::int32_t>::max()) {
    check.fail("logits", "1 to 2^31 - 1 tokens", to_string(args.logits));
  }
  if (!args.lengths.defined() && (args.temperature.defined() || args.history.defined())) {
    check.fail("lengths", "I32 [N] with temperature or history", "nothing");
  }
  optional("lengths", args.lengths, DType::kI32, n);
  optional("history", args.history, DType::kI32, slots, c);
  optional("slots", args.slots, DType::kI32, n);
  optional("temperature", args.temperature, DType::kF32, n);
  optional("top_k", args.top_k, DType::kI32, n);
  optional("top_p", args.top_p, DType::kF32, n);
  optional("min_p", args.min_p, DType::kF32, n);
  optional("repeat_penalty", args.repeat_penalty, DType::kF32, n);
  optional("repeat_last", args.repeat_last, DType::kI32, n);
  optional("seed", args.seed, DType::kI32, n, two);
  Dim words{"ceil(V/32)", (v.value + kBits - 1) / kBits};
  optional("allowed", args.allowed, DType::kI32, n, words);
  check.output("tokens", args.tokens, {DType::kI32}, n);
  check.fault(args.fault);
  if (args.repeat_penalty.defined() && !args.history.defined()) {
    check.fail("history", "I32 [slots,C] with repeat_penalty", "nothing");
  }
  if (args.history.defined() && !args.slots.defined() && n.value > slots.value) {
    check.fail("history", "a row for each of N = " + std::to_string(n.value) + " sequences", to_string(args.history));
  }
  if (!check.host_values()) return;
  std::vector<float> adjusted;
  for (std::int64_t i = 0; i < n.value; ++i) check_row(args, i, check, adjusted);
}

THALWEG_OPERATION(sample_tokens, SampleTokensArgs);

}  // namespace thalweg
