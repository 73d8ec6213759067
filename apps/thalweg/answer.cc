#include "answer.h"

#include "interrupt.h"
#include "prompt_progress.h"

namespace thalweg::app {

Generated answer(Model& model, Sequence& sequence, std::span<const std::int32_t> prompt, const Sampling& sampling,
                 std::int64_t max_tokens, const std::function<bool(std::string_view bytes)>& on_bytes,
                 const OnLogits& on_logits) {
  PromptProgress progress(prompt.size(), static_cast<std::size_t>(model.prefill_chunk()));
  const auto should_continue = [&] {
    progress.chunk_done();
    return !InterruptWatch::pressed();
  };
  return model.generate(
      sequence, prompt, sampling, max_tokens, on_bytes, should_continue,
      [&](std::int32_t) { progress.end(); },  // before the token's text
      on_logits);
}

}  // namespace thalweg::app
