#pragma once

// Shapes and inputs that the cases of the gated delta rule share.

#include <string>
#include <vector>

#include "cases/case.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::cases {

enum class Gates {
  kNone,    // g = 0
  kNear,    // as in published models: logsigmoid(normal) / 16, a quarter of the heads at 0
  kStrong,  // -20 per step
  kMixed,   // log-uniform from 1e-4 to 20, some zeros
};

enum class Betas { kSigmoid, kZero, kOne };

struct RuleShape {
  std::int64_t tokens = 64;
  std::int64_t hk = 2;
  std::int64_t hv = 4;
  std::int64_t k = 64;
  std::int64_t v = 64;
  std::int64_t batch = 1;
  std::vector<std::int64_t> lengths;  // packed ragged sequences instead of tokens and batch
  DType dtype = DType::kF32;
  HeadMap head_map = HeadMap::kGrouped;
  Gates gates = Gates::kNear;
  Betas betas = Betas::kSigmoid;
  bool strided = false;
  double value_scale = 1.0;  // of v

  std::int64_t total_tokens() const;  // of a batch row
  std::int64_t num_sequences() const;
  std::string name() const;
};

// The inputs of all operations of the family; keys and queries have norm 1, some 0.9.
struct RuleInputs {
  Tensor q, k, v, g, beta, cu_seqlens;
};
RuleInputs make_rule_inputs(const RuleShape& shape, Memory& memory, Random& random);

// One gate of value head `head`, and one beta.
double gate(Gates gates, std::int64_t head, Random& random);
double write_strength(Betas betas, Random& random);

// Raw gates [B,T,HV] with their per-head parameters.
GateInputs make_gates(std::int64_t batch, std::int64_t tokens, std::int64_t hv, DType dtype, Memory& memory,
                      Random& random);

// State indices [N]: slots of a pool of 2 N + 1 in reverse with gaps; sequence 1 has none.
Tensor make_indices(std::int64_t sequences, Memory& memory);

// Largest |sum of g| within a chunk, for bounds.
double largest_gate(const ConstTensor& g_cumsum);

// For kernels of the rule with 16-bit operands: several operands are rounded in sequence, each by up to half an ulp.
// FLA's kernels, which round as often, reach 4.4e-3 with bf16.
Bound matrix_unit_bound(DType dtype);

// The sweep over T, raggedness, head ratios and maps, gates, betas, dtypes, strides that every operation runs through.
std::vector<RuleShape> rule_shapes();

}  // namespace thalweg::cases
