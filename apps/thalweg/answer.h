#pragma once

#include <functional>
#include <span>
#include <string_view>

#include "thalweg/model.h"

namespace thalweg::app {

using OnLogits = std::function<void(std::int32_t token, std::span<const float> logits)>;

// Model::generate, which also stops at a signal (InterruptWatch). A prompt that takes longer than two seconds shows its
// progress on stderr (PromptProgress).
Generated answer(Model& model, Sequence& sequence, std::span<const std::int32_t> prompt, const Sampling& sampling,
                 std::int64_t max_tokens, const std::function<bool(std::string_view bytes)>& on_bytes,
                 const OnLogits& on_logits = {});

}  // namespace thalweg::app
