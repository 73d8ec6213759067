#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "checkpoint/weights.h"
#include "thalweg/error.h"

namespace thalweg::model {

// Takes tensors out of a source by name, with the checks that all of them share. Dimensions of 1 do not count, since
// writers leave them out or put them in: [C,1,W] in the file is [C,W], and [D] is [1,D].
class Binder {
 public:
  Binder(const ModelConfig& config, const io::TensorSource& source, Weights& weights)
      : config_(config), source_(source), weights_(weights) {}

  bool has(const std::string& name) const { return source_.has(name); }

  // A matrix or a stack of matrices: any dtype but I32.
  ConstTensor matrix(const std::string& name, std::initializer_list<std::int64_t> shape);

  // A vector or a small tensor in one of the float types whose values are finite.
  ConstTensor small(const std::string& name, std::initializer_list<std::int64_t> shape);

  [[noreturn]] void fail(std::string_view name, std::string_view expected, std::string_view given) const;

  // Rows b | a over all heads from rows [2*HV,D] that come by key head, its b first: a copy.
  ConstTensor sort_gate_rows(const ConstTensor& ba);

  // Equal matrices [N,K] as one [E,N,K]: a view if they lie at equal distances, else a copy.
  ConstTensor stack(const std::vector<ConstTensor>& matrices);

  void* allocate(std::size_t bytes) { return weights_.owned.allocate(bytes); }
  const ModelConfig& config() const { return config_; }

 private:
  ConstTensor take(const std::string& name, std::initializer_list<std::int64_t> shape, TensorUse use);

  const ModelConfig& config_;
  const io::TensorSource& source_;
  Weights& weights_;
};

// Element i of a contiguous tensor of a float type.
float element(const ConstTensor& tensor, std::int64_t i);

void bind_gguf(Binder& binder, Weights& weights);
void bind_hugging_face(Binder& binder, const io::TensorSource& source, Weights& weights);

// What Hugging Face calls the trunk's parent: "model." or "model.language_model.".
std::string hugging_face_prefix(const io::TensorSource& source);

}  // namespace thalweg::model
