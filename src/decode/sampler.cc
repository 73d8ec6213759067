#include "decode/sampler.h"

#include "core/sampling.h"
#include "thalweg/device.h"

namespace thalweg::decode {

void check_sampling(const Sampling& sampling) { thalweg::check_sampling(sampling, "sampling"); }

std::int32_t sample_token(std::span<const float> logits, std::span<const std::int32_t> tokens, const Sampling& sampling,
                          std::span<const std::uint32_t> allowed) {
  check_sampling(sampling);
  const auto length = static_cast<std::int32_t>(tokens.size());
  std::int32_t token = -1;
  SampleTokensArgs args;
  args.logits = {logits.data(), DType::kF32, {1, static_cast<std::int64_t>(logits.size())}, kCpu};
  args.lengths = {&length, DType::kI32, {1}, kCpu};
  // Settings without a tensor need no memory and no time.
  if (sampling.repeat_penalty != 1.0F && length > 0) {
    args.history = {tokens.data(), DType::kI32, {1, length}, kCpu};
    args.repeat_penalty = {&sampling.repeat_penalty, DType::kF32, {1}, kCpu};
    args.repeat_last = {&sampling.repeat_last, DType::kI32, {1}, kCpu};
  }
  const auto low = static_cast<std::uint32_t>(sampling.seed);
  const std::uint32_t words[] = {low, static_cast<std::uint32_t>(sampling.seed >> 32)};
  if (sampling.temperature != 0.0F) {
    args.temperature = {&sampling.temperature, DType::kF32, {1}, kCpu};
    args.top_k = {&sampling.top_k, DType::kI32, {1}, kCpu};
    args.top_p = {&sampling.top_p, DType::kF32, {1}, kCpu};
    args.min_p = {&sampling.min_p, DType::kF32, {1}, kCpu};
    args.seed = {words, DType::kI32, {1, 2}, kCpu};
  }
  if (!allowed.empty()) {
    args.allowed = {allowed.data(), DType::kI32, {1, static_cast<std::int64_t>(allowed.size())}, kCpu};
  }
  args.tokens = {&token, DType::kI32, {1}, kCpu};
  const Stream stream = Stream::cpu(1);
  HostWorkspace scratch;
  thalweg::sample_tokens(args, scratch.reserve(workspace_size(args, stream)), stream);
  return token;
}

}  // namespace thalweg::decode
