#pragma once

// The model in the box, on the CPU and on the executor, in f32 throughout: then the two differ by the order of sums
// alone, and greedy texts are equal.

#include <string>
#include <vector>

#include "metal/host/attach.h"
#include "thalweg/model.h"

namespace thalweg::metal {

inline Model load_story(Device device, bool exact = true) {
  attach_executor();
  ModelOptions options;
  options.device = device;
  options.exact = exact;
  options.context = 256;
  return Model::load(THALWEG_MODEL, options);
}

// The greedy answer's tokens.
inline std::vector<std::int32_t> answer_of(Model& model, const std::string& prompt, std::int64_t max_tokens) {
  Sequence sequence = model.start();
  return model.generate(sequence, model.tokenize(prompt), {}, max_tokens).tokens;
}

}  // namespace thalweg::metal
