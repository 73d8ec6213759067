#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "convert/type_mix.h"

namespace thalweg::convert {

struct SynthOptions {
  std::string like;        // the shapes of this one of published_models(); empty: shapes that fit the next two
  int layers = 0;          // of `like`, a multiple of four; 0: all
  double gigabytes = 1.0;  // 10^9 bytes of tensors, met within a few percent
  bool experts = false;    // qwen35moe instead of qwen35
  bool mtp = false;        // with an MTP layer
  bool tokenizer = true;   // false: tokenizer.ggml.model is "none", and the model takes token ids only
  std::uint64_t seed = 1;
  std::function<void(double done)> progress;
};

struct Synthesized {
  std::uint64_t bytes = 0;
  std::int64_t hidden = 0;
  int layers = 0;
};

// Writes a GGUF file with the shapes of a real model, random weights and a vocabulary of bytes, to measure the speed of
// models of any size, or of a published one. The same options give the same file.
Synthesized synthesize(const std::string& out, const TypeMix& mix, const SynthOptions& options);

}  // namespace thalweg::convert
