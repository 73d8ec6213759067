#include <algorithm>

#include "decode/model_impl.h"
#include "thalweg/error.h"

namespace thalweg {

std::vector<OperationTime> Model::profile(std::int64_t tokens, std::int64_t tokens_each, std::int64_t context) {
  const std::int64_t sequences = tokens_each > 0 ? tokens / tokens_each : 0;
  if (sequences < 1 || sequences > impl_->options.sequences || tokens > impl_->decoder->chunk() ||
      context + tokens_each > impl_->context) {
    throw Error(
        "profile", "tokens", "a step that the model was loaded for",
        std::to_string(tokens) + " tokens, " + std::to_string(tokens_each) + " each after " + std::to_string(context));
  }
  // Tokens that differ, as do the experts that they choose.
  std::vector<std::int32_t> ids(static_cast<std::size_t>(tokens_each));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int32_t>(static_cast<std::int64_t>(i) * 7919 % impl_->config.vocabulary);
  }
  std::vector<decode::DecoderInput> inputs;
  for (std::int64_t n = 0; n < sequences; ++n) {
    impl_->pool->set_length(static_cast<int>(n), context);
    inputs.push_back({static_cast<int>(n), ids});
  }
  std::vector<OperationTime> times;
  const auto add = [&](const std::string& operation, const std::string& kernel, double seconds) {
    const auto same = std::find_if(times.begin(), times.end(), [&](const OperationTime& time) {
      return time.operation == operation && time.kernel == kernel;
    });
    OperationTime& time = same != times.end() ? *same : times.emplace_back();
    time = {operation, kernel, time.calls + 1, time.seconds + seconds};
  };
  // A GPU repeats each operation by itself. On a CPU, where it would find its weights in the caches, the step repeats.
  constexpr std::int64_t kManyTokens = 64;
  const int runs = !impl_->runtime->on_host() ? 1 : tokens < kManyTokens ? 8 : 2;
  for (int run = 0; run < runs; ++run) {
    if (run == 1) times.clear();  // the first one warmed the caches
    impl_->decoder->profile(inputs, *impl_->pool, add);
  }
  for (OperationTime& time : times) {
    const int counted = std::max(1, runs - 1);
    time.calls /= counted;
    time.seconds /= counted;
  }
  for (std::int64_t n = 0; n < sequences; ++n) impl_->pool->clear(static_cast<int>(n));
  return times;
}

}  // namespace thalweg
