#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "io/tensor_source.h"
#include "thalweg/tensor.h"

namespace thalweg::checkpoint {

// Memory of tensors that cannot be used as the file stores them.
class OwnedMemory {
 public:
  void* allocate(std::size_t bytes);
  void count(std::size_t bytes) { bytes_ += bytes; }  // of memory that is not taken after all
  std::size_t bytes() const { return bytes_; }

 private:
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  std::size_t bytes_ = 0;
};

// D hidden, HK and HV heads of sizes K and V, C = 2 HK K + HV V.
struct GatedDeltaWeights {
  ConstTensor qkv;        // [C,D], q | k | v over all heads; undefined if qkvz is given
  ConstTensor z;          // [HV*V,D]
  ConstTensor qkvz;       // [C+HV*V,D], of each key head q | k | v | z
  ConstTensor b;          // [HV,D]; undefined if ba is given
  ConstTensor a;          // [HV,D]
  ConstTensor ba;         // [2*HV,D], b | a over all heads
  ConstTensor conv;       // [C,W]
  ConstTensor a_log;      // [HV]
  ConstTensor dt_bias;    // [HV]
  ConstTensor norm;       // [V]
  ConstTensor out;        // [D,HV*V]
  ConstTensor qkv_and_z;  // [C+HV*V,D], defined where qkv and z lie side by side (decode/device_weights.h)
};

// HQ query heads and HKV key heads of size A.
struct AttentionWeights {
  ConstTensor q;       // [HQ*2*A,D], of each head q | gate
  ConstTensor k;       // [HKV*A,D]
  ConstTensor v;       // [HKV*A,D]
  ConstTensor o;       // [D,HQ*A]
  ConstTensor q_norm;  // [A]
  ConstTensor k_norm;  // [A]
  ConstTensor qkv;     // [HQ*2*A+2*HKV*A,D], defined where q, k and v lie side by side
  ConstTensor qk;      // [HQ*2*A+HKV*A,D], where q and k do
};

struct DenseWeights {
  ConstTensor gate;         // [I,D]
  ConstTensor up;           // [I,D]
  ConstTensor down;         // [D,I]
  ConstTensor gate_and_up;  // [2*I,D], defined where gate and up lie side by side
};

struct MoeWeights {
  ConstTensor router;             // [E,D]
  ConstTensor gate;               // [E,I,D]
  ConstTensor up;                 // [E,I,D]
  ConstTensor down;               // [E,D,I]
  ConstTensor shared_gate;        // [J,D], undefined without a shared expert, as the next three
  ConstTensor shared_up;          // [J,D]
  ConstTensor shared_down;        // [D,J]
  ConstTensor shared_router;      // [D]
  std::int64_t first_expert = 0;  // gate, up and down may be those of a range of the router's experts, from here on
};

struct LayerWeights {
  ConstTensor input_norm;         // [D]
  ConstTensor post_norm;          // [D]
  GatedDeltaWeights gated_delta;  // of a LayerKind::kGatedDelta
  AttentionWeights attention;     // of a LayerKind::kAttention
  DenseWeights dense;             // of a layer that is not sparse
  MoeWeights moe;                 // of one that is
};

// The layer that foresees the token after the next one (docs/speculation.md), of which drafts are made: fc takes
// [embedding | hidden state], each after its norm, to the input of a layer with attention.
struct MtpWeights {
  ConstTensor embedding_norm;  // [D]
  ConstTensor hidden_norm;     // [D]
  ConstTensor fc;              // [D,2*D]
  LayerWeights layer;
  ConstTensor norm;       // [D]
  ConstTensor embedding;  // [vocabulary,D]; the trunk's unless the file has one
  ConstTensor head;       // [vocabulary,D]; the trunk's unless the file has one
};

// What a tensor of the file is to the decoder. tensor_names_gguf.cc and tensor_names_hugging_face.cc assign the roles.
enum class TensorRole : std::uint8_t {
  kSmall,   // a norm, a bias, a convolution, a decay
  kMatrix,  // a matrix of its own: a projection, the embedding, the head
  kMoe,     // the expert block's router and shared expert
  kExpert,  // routed experts: one of them, or all
};

struct TensorUse {
  TensorRole role = TensorRole::kSmall;
  std::size_t layer = 0;  // of the trunk; 0 for what belongs to no layer
  bool mtp = false;       // of the MTP layer
};

// The tensors of the trunk and the MTP layer as views into the file's mapping, on the host. Three kinds are copied at
// load, and counted in `owned`: A_log, computed from GGUF's ssm_a; the rows of interleaved b and a, which are small;
// experts that a Hugging Face file stores one by one, unless they lie at equal distances, because the expert matmul
// takes one tensor. The interleaved q | k | v | z of Qwen3-Next is not copied: the decoder de-interleaves the
// activations.
struct Weights {
  ConstTensor embedding;         // [vocabulary,D]
  ConstTensor norm;              // [D]
  ConstTensor head;              // [vocabulary,D]; the embedding if tied
  ConstTensor rope_frequencies;  // [rotary_dim/2] f32; undefined if they follow from theta
  std::vector<LayerWeights> layers;
  MtpWeights mtp;  // of a model with ModelConfig::has_mtp
  OwnedMemory owned;
  std::map<std::string, TensorUse> used;  // by name in the file
};

// Finds the weights of a model in its file. Throws Error that names file and tensor if a tensor is missing, has another
// shape than the configuration implies or a type that does not fit, if a norm or gate has values that are not finite,
// or if nothing reads a tensor of the trunk's layers.
Weights bind_weights(const ModelConfig& config, const io::TensorSource& source);

// Throws what bind_weights would throw, without a copy of any expert.
void check_weights(const ModelConfig& config, const io::TensorSource& source);

// What the names of a Hugging Face file's trunk begin with: "model." or "model.language_model.".
std::string hugging_face_prefix(const io::TensorSource& source);

// What the names of its MTP layer begin with, "mtp." or that behind the trunk's prefix; empty if there is none.
std::string mtp_prefix(const io::TensorSource& source);

}  // namespace thalweg::checkpoint
