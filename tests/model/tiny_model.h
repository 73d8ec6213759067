#pragma once

// Small random models, written as Hugging Face folders and as GGUF files, and their logits in float64 from
// the models' mathematics, without code of the library.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "thalweg/dtype.h"

namespace thalweg::model {

struct TinySpec {
  std::string architecture = "qwen35moe";
  int layers = 4;
  int interval = 4;
  int hidden = 64;
  int vocabulary = 101;
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 64;
  int key_heads = 2;
  int value_heads = 4;
  int key_dim = 32;
  int value_dim = 64;
  int conv_width = 4;
  int experts = 6;  // 0: dense
  int experts_used = 2;
  int expert_hidden = 32;
  int shared_hidden = 64;
  int dense_hidden = 96;
  std::vector<int> dense_layers;  // mlp_only_layers, Qwen3-Next
  bool renormalize = true;
  bool tied = false;
  bool separate_experts = false;  // in the Hugging Face folder
  bool interleaved_in = false;    // qwen3next GGUF: ssm_in, as older files have it
  bool mtp = true;                // an MTP layer
  std::uint64_t seed = 1;

  bool sparse(int layer) const;
  bool full_attention(int layer) const { return (layer + 1) % interval == 0; }
};

struct TinyTensor {
  std::vector<std::int64_t> shape;
  std::vector<float> values;
};

class TinyModel {
 public:
  explicit TinyModel(const TinySpec& spec);

  // Whether the GGUF file gets one: the 256 bytes and <|im_end|>, then tokens that are never used.
  bool with_tokenizer = false;
  // Otherwise tokenizer.ggml.model of that file; empty: the key is absent.
  std::string tokenizer_model;

  const TinySpec& spec() const { return spec_; }
  // By their Hugging Face names; tests may change them before they write.
  std::map<std::string, TinyTensor>& tensors() { return tensors_; }

  std::string config_json() const;
  void write_hugging_face(const std::string& folder, DType dtype = DType::kF32) const;
  // Matrices in `dtype` where their rows allow it; norms and their like in F32.
  void write_gguf(const std::string& path, DType dtype = DType::kF32) const;

  // Logits [T][vocabulary] after each token.
  std::vector<std::vector<double>> logits(const std::vector<std::int32_t>& tokens) const;
  // The MTP layer's logits [N][vocabulary] from which drafts of what follows the last token are chosen, and `drafts`,
  // of N - 1 tokens, were.
  std::vector<std::vector<double>> draft_logits(const std::vector<std::int32_t>& tokens,
                                                const std::vector<std::int32_t>& drafts) const;

  // Makes the next token depend mostly on the last one, and lets the MTP layer know how: drafts are often right.
  void make_predictable();

 private:
  const TinyTensor& at(const std::string& name) const { return tensors_.at(name); }
  void add(const std::string& name, std::vector<std::int64_t> shape, double scale, double shift = 0);

  TinySpec spec_;
  std::string prefix_;
  std::uint64_t random_;
  std::map<std::string, TinyTensor> tensors_;
};

// Random ids below the vocabulary.
std::vector<std::int32_t> random_tokens(std::size_t count, int vocabulary, std::uint64_t seed);

}  // namespace thalweg::model
