#pragma once

// Float64 oracles of the dense operations. Each returns its operation's outputs, dense, by the contract in the public
// header; Precision::kRounded rounds where results and states are stored and nowhere else.

#include <cstdint>
#include <vector>

#include "core/cache_places.h"
#include "core/sequences.h"
#include "reference/array.h"
#include "thalweg/nn.h"

namespace thalweg::reference {

struct ConvResult {
  Array y;      // [B,T,C]
  Array state;  // like the pool, unused slots unchanged; empty without one
};
ConvResult causal_conv1d(const CausalConv1dArgs& args, Precision precision);
ConvResult causal_conv1d_update(const CausalConv1dUpdateArgs& args, Precision precision);

Array rms_norm(const RmsNormArgs& args, Precision precision);
Array rms_norm_sum(const RmsNormArgs& args, Precision precision);
Array gated_rms_norm(const GatedRmsNormArgs& args, Precision precision);
Array rope(const RopeArgs& args, Precision precision);
Array embedding(const EmbeddingArgs& args, Precision precision);
Array add(const AddArgs& args, Precision precision);
Array swiglu(const SwigluArgs& args, Precision precision);

// Both caches; elements that are not stored to are unchanged.
struct Caches {
  Array k, v;  // [slots,S,HKV,D]
};
Caches store_kv(const StoreKvArgs& args, Precision precision);

struct Qkvz {
  Array q, k, v, z;
};
Qkvz split_qkvz(const SplitQkvzArgs& args);

// One attention, row by row: cases of long sequences compute only some of them.
class Attention {
 public:
  explicit Attention(const AttentionArgs& args);

  // Output of query head `head` of packed token `token`, [D]. Precision::k16Bit rounds q, and the keys and values of a
  // cache of Q8_0 or with bf16_operands, as the contract allows, and nothing else: how a kernel rounds weights depends
  // on its order.
  std::vector<double> row(std::int64_t token, std::int64_t head, Precision precision) const;

  // The expected squared norm of a row's error if each of its weights is rounded to 16 bits, as q is, on its own:
  // relative errors of variance u^2/3 at most, u being the dtype's unit roundoff.
  double weight_noise(std::int64_t token, std::int64_t head) const;

 private:
  // Keys and values of the sequence that was read last, [length,HKV,D].
  struct Cached {
    std::int64_t sequence = -1;
    Array k, v;

    static const double* row(const Array& rows, std::int64_t position, std::int64_t key_head) {
      return &rows.values[static_cast<std::size_t>((position * rows.dim(1) + key_head) * rows.dim(2))];
    }
  };

  std::int64_t group() const { return args_.q.dim(1) / args_.k_cache.dim(2); }
  std::int64_t sequence_of(std::int64_t token) const;
  void gather(std::int64_t n) const;
  // The softmax of a row of the gathered sequence.
  std::vector<double> weights(std::int64_t token, std::int64_t head, Precision precision) const;
  std::vector<double> gates(std::int64_t token, std::int64_t head) const;
  double operand(double cached, Precision precision) const;

  AttentionArgs args_;
  CachePlaces places_;
  Sequences sequences_;
  mutable Cached cached_;
};
Array attention(const AttentionArgs& args, Precision precision);

}  // namespace thalweg::reference
