#pragma once

// Shapes and inputs that the cases of the expert matmuls share.

#include <string>
#include <vector>

#include "cases/case.h"
#include "thalweg/moe.h"

namespace thalweg::cases {

enum class Ids {
  kRouted,     // each token's experts differ from each other
  kCrowded,    // the same among the first third of the experts only: the others are empty
  kOneExpert,  // all slots of all tokens on the last expert
  kElsewhere,  // as kRouted, but half of the experts are not here: -1
};

struct ExpertShape {
  std::int64_t tokens = 7;
  std::int64_t slots = 2;
  std::int64_t experts = 6;
  std::int64_t n = 40;
  std::int64_t k = 512;
  DType weight = DType::kQ4_K;
  DType x = DType::kF32;
  DType y = DType::kF32;
  Ids ids = Ids::kRouted;
  MatmulPrecision precision = MatmulPrecision::kExact;
  bool per_slot = false;
  bool strided = false;
  bool fused = false;  // weights are the second half of a tensor [E,2N,K]
  double size = 1.0;   // of the activations
  bool large = false;  // for the benchmark: weights of gigabytes, a sample of the outputs is checked

  std::string name() const;
  double reduction() const { return static_cast<double>(k); }
};

// NMSE 1e-5 for a product of operands rounded to bf16: 2.8e-6 for each of the two, and as much again.
Bound bf16_product_bound();
// The same for the inputs at hand: of few outputs, or of values that bf16 holds badly, the plain computation with
// rounded operands may be off by more. A kernel may be off by 1.5 times that.
Bound bf16_product_bound(const reference::Array& exact, const reference::Array& plain_16bit);
// NMSE 2e-4 for a product with activations rounded to 8 bits.
Bound q8_product_bound();

// Every dtype that weights may have, and those of them that are block formats.
std::vector<DType> weight_types();
std::vector<DType> block_types();

// A weight tensor of any dtype but I32: random valid blocks, never packed from floats.
Tensor make_weights(Memory& memory, DType dtype, const std::vector<std::int64_t>& shape, Random& random);
// The same, quickly, for gigabytes: rows are cut from a few random megabytes.
Tensor make_large_weights(Memory& memory, DType dtype, const std::vector<std::int64_t>& shape, Random& random);

Tensor make_ids(Memory& memory, const ExpertShape& shape, Random& random);
ExpertMatmulArgs make_expert_args(const ExpertShape& shape, Memory& memory, Random& random);
std::vector<Expected> expect_products(const ExpertMatmulArgs& args, bool sample);
std::vector<Expected> expect_ffn(const MoeFfnArgs& args);
std::vector<Expected> expect_linear(const LinearArgs& args, const std::string& output = "y");
// Weight bytes of the distinct experts hit, activations, products.
Cost expert_cost(const ExpertMatmulArgs& args);

// Second half along dimension 1 of a tensor of rank 3.
Tensor second_half(const Tensor& tensor);

void add_linear_cases(std::vector<Case>& cases);
void add_projections_cases(std::vector<Case>& cases);
void add_routing_cases(std::vector<Case>& cases);
void add_expert_matmul_cases(std::vector<Case>& cases);
void add_moe_ffn_cases(std::vector<Case>& cases);

}  // namespace thalweg::cases
