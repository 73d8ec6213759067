#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

#include "checkpoint/weights.h"
#include "thalweg/error.h"

namespace thalweg::checkpoint {

// Looks up a model's tensors by their names in the file, checks them and records their roles. Dimensions of 1 are
// ignored, because writers leave them out or add them: [C,1,W] in the file is [C,W], and [D] is [1,D].
class TensorBinder {
 public:
  // Whether stack() copies where it has to; without, what it returns is not to be read.
  enum class Copies : bool { kLeftOut, kMade };

  TensorBinder(const ModelConfig& config, const io::TensorSource& source, Weights& weights, Copies copies)
      : config_(config), source_(source), weights_(weights), copies_(copies) {}

  bool has(const std::string& name) const { return source_.has(name); }

  // The layer that the next tensors belong to.
  void begin_layer(std::size_t layer) { layer_ = layer; }
  void begin_mtp() {
    layer_ = 0;
    mtp_ = true;
  }

  // A matrix or a stack of matrices, of any dtype but I32.
  ConstTensor matrix(const std::string& name, std::initializer_list<std::int64_t> shape,
                     TensorRole role = TensorRole::kMatrix);

  // A vector or a small tensor of F32, F16 or BF16 whose values are finite.
  ConstTensor small(const std::string& name, std::initializer_list<std::int64_t> shape);

  [[noreturn]] void fail(std::string_view name, std::string_view expected, std::string_view given) const;

  // Rows b | a over all heads [2*HV,D], from rows [2*HV,D] that hold b | a of each key head: a copy.
  ConstTensor deinterleave_gates(const ConstTensor& ba);

  // E matrices [N,K] of one dtype as [E,N,K]: a view if they lie at equal distances, else a copy.
  ConstTensor stack(const std::vector<ConstTensor>& matrices);

  void* allocate(std::size_t bytes) { return weights_.owned.allocate(bytes); }
  const ModelConfig& config() const { return config_; }

 private:
  ConstTensor take(const std::string& name, std::initializer_list<std::int64_t> shape, TensorRole role);

  const ModelConfig& config_;
  const io::TensorSource& source_;
  Weights& weights_;
  Copies copies_;
  std::size_t layer_ = 0;
  bool mtp_ = false;
};

// Element i of a contiguous tensor of a float type.
float element(const ConstTensor& tensor, std::int64_t i);

// Assign each tensor of a file its role: every name that a file may use is in tensor_names_gguf.cc or
// tensor_names_hugging_face.cc.
void bind_gguf(TensorBinder& binder, Weights& weights);
void bind_hugging_face(TensorBinder& binder, const io::TensorSource& source, Weights& weights);

}  // namespace thalweg::checkpoint
