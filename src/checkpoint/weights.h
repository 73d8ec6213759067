#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "io/tensor_source.h"
#include "thalweg/tensor.h"

namespace thalweg::model {

// Memory of what cannot be used as it lies in the file.
class OwnedMemory {
 public:
  void* allocate(std::size_t bytes);
  std::size_t bytes() const { return bytes_; }

 private:
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::size_t bytes_ = 0;
};

// D hidden, HK and HV heads of sizes K and V, C = 2 HK K + HV V.
struct GatedDeltaWeights {
  ConstTensor qkv;      // [C,D], q | k | v over all heads; undefined if qkvz is there
  ConstTensor z;        // [HV*V,D]
  ConstTensor qkvz;     // [C+HV*V,D], q | k | v | z of each key head in turn
  ConstTensor b;        // [HV,D]; undefined if ba is there
  ConstTensor a;        // [HV,D]
  ConstTensor ba;       // [2*HV,D], b | a over all heads
  ConstTensor conv;     // [C,W]
  ConstTensor a_log;    // [HV]
  ConstTensor dt_bias;  // [HV]
  ConstTensor norm;     // [V]
  ConstTensor out;      // [D,HV*V]
};

// HQ query heads and HKV key heads of size A.
struct AttentionWeights {
  ConstTensor q;       // [HQ*2*A,D], of each head q | gate
  ConstTensor k;       // [HKV*A,D]
  ConstTensor v;       // [HKV*A,D]
  ConstTensor o;       // [D,HQ*A]
  ConstTensor q_norm;  // [A]
  ConstTensor k_norm;  // [A]
};

struct DenseWeights {
  ConstTensor gate;  // [I,D]
  ConstTensor up;    // [I,D]
  ConstTensor down;  // [D,I]
};

struct MoeWeights {
  ConstTensor router;         // [E,D]
  ConstTensor gate;           // [E,I,D]
  ConstTensor up;             // [E,I,D]
  ConstTensor down;           // [E,D,I]
  ConstTensor shared_gate;    // [J,D], undefined without a shared expert, as the next three
  ConstTensor shared_up;      // [J,D]
  ConstTensor shared_down;    // [D,J]
  ConstTensor shared_router;  // [D]
};

struct LayerWeights {
  ConstTensor input_norm;         // [D]
  ConstTensor post_norm;          // [D]
  GatedDeltaWeights gated_delta;  // of a LayerKind::kGatedDelta
  AttentionWeights attention;     // of a LayerKind::kAttention
  DenseWeights dense;             // of a layer that is not sparse
  MoeWeights moe;                 // of one that is
};

enum class TensorUse : std::uint8_t { kMatrix, kSmall };

// The trunk's tensors as views into the file's mapping. Copied at load, and counted in `owned`: A_log from GGUF's
// ssm_a; the rows of interleaved b and a (small); experts that a Hugging Face file holds one by one, unless they lie at
// equal distances, because the expert matmul takes one tensor. The interleaved q | k | v | z of Qwen3-Next stays as it
// is: the decoder sorts the activations.
struct Weights {
  ConstTensor embedding;  // [vocabulary,D]
  ConstTensor norm;       // [D]
  ConstTensor head;       // [vocabulary,D]; the embedding if tied
  std::vector<LayerWeights> layers;
  OwnedMemory owned;
  std::map<std::string, TensorUse> used;  // by name in the file
};

// Throws Error that names file and tensor: one that is missing, of another shape than the configuration says, of a type
// that does not fit, a norm or gate with values that are not finite, or a tensor in the trunk's layers that nothing
// here reads.
Weights bind_weights(const ModelConfig& config, const io::TensorSource& source);

}  // namespace thalweg::model
