#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/tokenizer.h"
#include "checkpoint/weights.h"
#include "decode/decoder.h"
#include "decode/state.h"
#include "io/gguf.h"
#include "io/safetensors.h"
#include "thalweg/model.h"

namespace thalweg {

struct Model::Impl {
  std::unique_ptr<io::GgufFile> gguf;                // one of the two
  std::unique_ptr<io::SafetensorsFile> safetensors;  // is there
  model::ModelConfig config;
  model::Weights weights;
  ModelOptions options;
  std::int64_t context = 0;
  std::unique_ptr<model::StatePool> pool;
  std::unique_ptr<model::Decoder> decoder;
  std::optional<text::Tokenizer> tokenizer;
  std::string chat_template;  // as the file has it; empty without one
  ModelInfo info;

  const io::TensorSource& source() const {
    return gguf != nullptr ? static_cast<const io::TensorSource&>(*gguf) : *safetensors;
  }

  const text::Tokenizer& require_tokenizer() const;

  // Computed when it is first asked for: it touches every tensor.
  std::uint64_t fingerprint();

  // Logits of the last token of each input go to its sequence. False if go_on said no.
  bool run(std::span<const SequenceInput> batch, model::LogitsOf which, const model::HearLogits& hear,
           const GoOn& go_on);

 private:
  std::optional<std::uint64_t> fingerprint_;
};

struct Sequence::Impl {
  std::shared_ptr<Model::Impl> model;
  int slot = -1;
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;
  bool damaged = false;  // an error ended a run: the slot holds something between two tokens

  ~Impl() {
    if (model != nullptr && slot >= 0) model->pool->release(slot);
  }
};

namespace model {

ModelInfo describe(const Model::Impl& model, const std::string& path);

}  // namespace model
}  // namespace thalweg
