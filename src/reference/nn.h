#pragma once

// Float64 oracles of the dense operations. Each returns its operation's outputs, dense, by the contract in the public
// header; Precision::kRounded rounds where results and states are stored and nowhere else.

#include <cstdint>
#include <vector>

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

// The inputs of one attention, read once. Cases of long sequences compute only some of the rows.
class Attention {
 public:
  explicit Attention(const AttentionArgs& args);

  // Output of query head `head` of packed token `token`, [D].
  std::vector<double> row(std::int64_t token, std::int64_t head, Precision precision) const;

 private:
  AttentionArgs args_;
  Array q_, k_, v_, gate_;
};
Array attention(const AttentionArgs& args, Precision precision);

}  // namespace thalweg::reference
