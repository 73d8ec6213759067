#include "answer.h"

#include <chrono>
#include <optional>

#include "interrupt.h"
#include "prompt_progress.h"

namespace thalweg::app {

Generated answer(Model& model, Sequence& sequence, std::span<const std::int32_t> prompt, const Sampling& sampling,
                 std::int64_t max_tokens, const std::function<bool(std::string_view bytes)>& on_bytes,
                 const OnToken& on_token) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  bool read = true;
  if (!prompt.empty()) {
    PromptProgress bar(prompt.size(), static_cast<std::size_t>(ModelOptions().prefill_chunk));
    read = model.prefill(sequence, prompt, [&] {
      bar.chunk_done();
      return !InterruptWatch::pressed();
    });
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
  Generated result;
  if (read) {
    result = model.generate(
        sequence, {}, sampling, max_tokens, on_bytes, [] { return !InterruptWatch::pressed(); }, on_token);
    result.prompt_tokens = static_cast<std::int64_t>(prompt.size());
  } else {
    result.reason = StopReason::kCaller;
  }
  result.prefill_seconds = seconds;
  return result;
}

}  // namespace thalweg::app
