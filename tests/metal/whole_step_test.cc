// A whole step at the shapes of Qwen3.5-35B-A3B, by operation: formulas of the products against the executor's counts
// on small shapes; everything else executed at its own size.

#include <gtest/gtest.h>

#include <cstdio>

#include "metal/counted.h"
#include "metal/traffic.h"
#include "thalweg/gated_delta_rule.h"
#include "thalweg/moe.h"
#include "thalweg/nn.h"

namespace thalweg::metal {
namespace {

using traffic::Count;
using traffic::Experts;
using traffic::Product;
using traffic::Traffic;

constexpr Stream kFew{{DeviceType::kMetal, 0}, 0, nullptr, RowHint::kFew};
constexpr Stream kMany{{DeviceType::kMetal, 0}, 0, nullptr, RowHint::kMany};

class WholeStep : public Counted {
 protected:
  template <class Args>
  Traffic traffic_of(const Args& args, const Stream& stream) {
    const Counts counts = counts_of(args, stream);
    return traffic_of(counts);
  }
  static Traffic traffic_of(const Counts& counts) {
    return {static_cast<Count>(counts.launches), static_cast<Count>(counts.device_bytes_read),
            static_cast<Count>(counts.device_bytes_written)};
  }
  static void expect_kernel(std::string_view kernel, const Traffic& expected) {
    EXPECT_EQ(traffic_of(of_kernel(kernel)), expected) << kernel;
  }
};

TEST_F(WholeStep, FormulasOfProductsAreTheExecutors) {
  for (const DType format : {DType::kF32, DType::kQ4_K}) {
    for (const Count k : {256, 512, 1024, 2048, 4096}) {
      for (const Count tokens : {1, 4, 6, 33}) {
        const Count n = k > 1024 ? 20 : 68;
        SCOPED_TRACE(std::to_string(tokens) + "x" + std::to_string(n) + "x" + std::to_string(k));
        LinearArgs args;
        args.weight = tensor(format, {n, k});
        args.x = tensor(DType::kBF16, {tokens, k});
        args.y = tensor(DType::kBF16, {tokens, n});
        const Product product{format, tokens, n, k};
        if (tokens < 33) EXPECT_EQ(traffic_of(args, kFew), product.rows());
        if (k <= 1024) EXPECT_EQ(traffic_of(args, kMany), product.tiles());
      }
    }
  }
}

// Router logits of zeros choose the first experts for every token.
TEST_F(WholeStep, FormulasOfExpertBlocksAreTheExecutors) {
  for (const Count tokens : {1, 3, 40}) {
    for (const Count inner : {256, 512}) {
      SCOPED_TRACE(std::to_string(tokens) + " tokens, " + std::to_string(inner));
      const Count slots = 2;
      const Experts block{tokens, 256, slots, 16, inner, 256, slots * traffic::ceil_div(tokens, 32)};
      MoeFfnArgs args;
      args.x = tensor(DType::kBF16, {tokens, block.d});
      args.router = tensor(DType::kF32, {block.experts, block.d});
      args.gate = tensor(DType::kQ4_K, {block.experts, inner, block.d});
      args.up = tensor(DType::kQ4_K, {block.experts, inner, block.d});
      args.down = tensor(DType::kQ4_K, {block.experts, block.d, inner});
      args.shared_gate = tensor(DType::kQ4_K, {block.shared, block.d});
      args.shared_up = tensor(DType::kQ4_K, {block.shared, block.d});
      args.shared_down = tensor(DType::kQ4_K, {block.d, block.shared});
      args.shared_router = tensor(DType::kF32, {block.d});
      args.y = tensor(DType::kBF16, {tokens, block.d});
      args.top_k = static_cast<int>(slots);
      if (tokens < 40) {
        EXPECT_EQ(traffic_of(args, kFew), block.by_vectors());
        expect_kernel("mul_mv_id", block.gate_up_vectors());
        expect_kernel("experts_down", block.down_vectors());
        expect_kernel("route_top_k", block.choice());
      }
      EXPECT_EQ(traffic_of(args, kMany), block.by_tiles());
      expect_kernel("expert_rows", block.lists());
      expect_kernel("mul_mm_id",
                    block.product_tiles(inner, block.d, 2, true) + block.product_tiles(block.d, inner, 4, false));
      expect_kernel("combine_experts", block.combine());
    }
  }
}

}  // namespace
}  // namespace thalweg::metal
