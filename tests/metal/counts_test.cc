// Launches, bytes and multiplications of the kernels, counted by the executor on the originals' shapes.

#include <gtest/gtest.h>

#include "metal/counted.h"
#include "metal/originals.h"
#include "thalweg/gated_delta_rule.h"
#include "thalweg/moe.h"

namespace thalweg::metal {
namespace {

std::uint64_t bytes(const ConstTensor& tensor) {
  return static_cast<std::uint64_t>(bytes_of(tensor.dtype, tensor.size()));
}

TEST_F(Counted, ExpertMatmulLaunchesOnlyTheExpertsThatAreHit) {
  // M = 1, 8 of 128 experts, N 2048; K does not enter the counts of threadgroups.
  const originals::ExpertSchedule original{1, 8, 128, 2048};
  MulMmIdArgs args;
  args.weight = tensor(DType::kQ4_K, {128, 2048, 256});
  args.x = tensor(DType::kF32, {1, 256});
  const Tensor ids = tensor(DType::kI32, {1, 8});
  for (int i = 0; i < 8; ++i) static_cast<std::int32_t*>(ids.data)[i] = 3 + 16 * i;
  args.expert_ids = ids;
  args.y = tensor(DType::kF32, {1, 8, 2048});
  counts_of(args);
  EXPECT_EQ(of_kernel("mul_mm_id").threadgroups, 8U * 2048 / 64);
  EXPECT_EQ(of_kernel("expert_rows").threadgroups, 1U);
  EXPECT_EQ(of_kernel("mul_mm_id").dependencies, 1U);
  // Every id is read once in all.
  EXPECT_EQ(of_kernel("expert_rows").device_bytes_read, bytes(ids));
  EXPECT_EQ(original.threadgroups(), 4096);
  EXPECT_EQ(original.ids_scanned(), 4096 * 8);
}

TEST_F(Counted, MulMatIdTakesTilesFromMoreRowsThanExpertsOn) {
  for (const std::int64_t experts : {1, 8, 128}) {
    for (const std::int64_t rows : {std::int64_t{1}, experts, experts + 1, 100 * experts}) {
      MulMatIdArgs args;
      args.weight = ConstTensor(nullptr, DType::kQ4_K, {experts, 64, 256}, kMetal);
      args.x = ConstTensor(nullptr, DType::kF32, {rows, 256}, kMetal);
      args.expert_ids = ConstTensor(nullptr, DType::kI32, {rows, 1}, kMetal);
      args.y = Tensor(nullptr, DType::kF32, {rows, 1, 64}, kMetal);
      const Explanation e = explain(args, kStream);
      EXPECT_EQ(e.kernels.at(static_cast<std::size_t>(e.chosen)).kernel, rows <= experts ? "mv" : "mm")
          << rows << " rows, " << experts << " experts";
      for (const KernelVerdict& kernel : e.kernels) EXPECT_TRUE(kernel.supported) << kernel.kernel;
    }
  }
}

TEST_F(Counted, ExpertRowsReadEachIdOnce) {
  ExpertRowsArgs args;
  args.expert_ids = tensor(DType::kI32, {256, 8});
  args.expert_offsets = tensor(DType::kI32, {129});
  args.rows = tensor(DType::kI32, {2048});
  const Counts counts = counts_of(args);
  EXPECT_EQ(counts.device_bytes_read, bytes(args.expert_ids));
  EXPECT_EQ(counts.device_bytes_written, bytes(args.expert_offsets) + bytes(args.rows));
}

TEST_F(Counted, KktSharesKeysAndLeavesOutTheMaskedHalf) {
  constexpr originals::Shape kShape{128, 16, 32, 128, 128};
  ChunkScaledDotKktArgs args;
  args.k = tensor(DType::kBF16, {1, kShape.tokens, kShape.hk, kShape.k});
  args.beta = tensor(DType::kF32, {1, kShape.tokens, kShape.hv});
  args.g_cumsum = tensor(DType::kF32, {1, kShape.tokens, kShape.hv});
  args.a = tensor(DType::kF32, {1, kShape.tokens, kShape.hv, 64});
  args.head_map = HeadMap::kGrouped;
  const Counts counts = counts_of(args);
  EXPECT_EQ(counts.device_bytes_read, bytes(args.k) + bytes(args.beta) + bytes(args.g_cumsum));
  EXPECT_EQ(counts.device_bytes_written, bytes(args.a));
  // 36 of 64 tiles, for each key head.
  EXPECT_EQ(counts.matrix_operations, static_cast<std::uint64_t>(kShape.chunks() * kShape.hk * 36 * kShape.k / 8));
  EXPECT_LT(counts.matrix_operations * 512, static_cast<std::uint64_t>(originals::kkt_products(kShape) / 3));
  EXPECT_LT(100 * bytes(args.k), static_cast<std::uint64_t>(originals::kkt_key_bytes(kShape)));
}

TEST_F(Counted, SolveUsesMatricesBelowTheDiagonal) {
  SolveTrilArgs args;
  args.a = tensor(DType::kF32, {1, 128, 2, 64});
  args.a_inv = tensor(DType::kF32, {1, 128, 2, 64});
  const Counts counts = counts_of(args);
  EXPECT_EQ(counts.threadgroups, 4U);
  // Blocks of 1, 2 and 4 tiles are joined: 4 (1 + 1), 2 (6 + 6) and 40 + 40 products.
  EXPECT_EQ(counts.matrix_operations, 4U * (8 + 24 + 80));
  // Only elements below the diagonal are read.
  EXPECT_EQ(counts.device_bytes_read, 4U * (64 * 63 / 2) * 4);
  EXPECT_EQ(counts.device_bytes_written, bytes(args.a_inv));
  // The longest chain: 28 multiply-adds within a tile, then products of 1, 2 and 4 tiles' length, twice each.
  constexpr int kChain = 28 + 2 * (1 + 2 + 4);
  static_assert(kChain < 64);
  EXPECT_GT(originals::solve_chain(), 40 * kChain);
}

TEST_F(Counted, StateStaysInRegistersForEveryHeadSize) {
  for (const std::int64_t k : {64, 128, 256}) {
    ChunkStateArgs args;
    args.k = tensor(DType::kBF16, {1, 64, 1, k});
    args.w = tensor(DType::kBF16, {1, 64, 1, k});
    args.u = tensor(DType::kBF16, {1, 64, 1, 64});
    args.g_cumsum = tensor(DType::kF32, {1, 64, 1});
    args.final_state = tensor(DType::kF32, {1, 1, 64, k});
    args.head_map = HeadMap::kGrouped;
    const Counts counts = counts_of(args);
    // Two threadgroups of 32 rows; each reads k and w once.
    EXPECT_EQ(counts.device_bytes_read, 2 * (bytes(args.k) + bytes(args.w) + bytes(args.g_cumsum)) + bytes(args.u));
    EXPECT_EQ(counts.device_bytes_written, bytes(args.final_state));
    // w S^T and k^T v', eight rows of tiles each, and the decay.
    EXPECT_EQ(counts.matrix_operations, static_cast<std::uint64_t>(8 * (k / 8) * (8 + 8 + 1)));
    EXPECT_LE(counts.threadgroup_bytes, 32768U);
  }
}

TEST_F(Counted, StepMakesNormsOncePerKeyHead) {
  constexpr originals::Shape kShape{1, 16, 32, 128, 128};
  constexpr std::int64_t kChannels = 2 * kShape.hk * kShape.k + kShape.hv * kShape.v;
  GatedDeltaPrepStepArgs args;
  args.x = tensor(DType::kBF16, {1, 1, kChannels});
  args.conv_weight = tensor(DType::kBF16, {kChannels, 4});
  args.conv_state = tensor(DType::kBF16, {1, kChannels, 3});
  args.gates.a = tensor(DType::kBF16, {1, 1, kShape.hv});
  args.gates.b = tensor(DType::kBF16, {1, 1, kShape.hv});
  args.gates.a_log = tensor(DType::kF32, {kShape.hv});
  args.gates.dt_bias = tensor(DType::kBF16, {kShape.hv});
  args.q_norm_weight = tensor(DType::kBF16, {kShape.hk, kShape.k});
  args.k_norm_weight = tensor(DType::kBF16, {kShape.hk, kShape.k});
  args.state_in = tensor(DType::kF32, {1, kShape.hv, kShape.v, kShape.k});
  args.state_out = tensor(DType::kF32, {1, kShape.hv, kShape.v, kShape.k});
  args.y = tensor(DType::kBF16, {1, 1, kShape.hv, kShape.v});
  args.head_map = HeadMap::kGrouped;
  args.qk_norm = QkNorm::kRms;
  const Counts counts = counts_of(args);
  EXPECT_EQ(counts.launches, 1U);
  EXPECT_EQ(counts.threadgroups, static_cast<std::uint64_t>(kShape.hk));
  // Every input is read once, so that there is one norm of q and of k for each key head, where the original made one
  // for each row of each value head.
  std::uint64_t inputs = 0;
  for (const ConstTensor& input :
       {args.x, args.conv_weight, ConstTensor(args.conv_state), args.gates.a, args.gates.b, args.gates.a_log,
        args.gates.dt_bias, args.q_norm_weight, args.k_norm_weight, args.state_in}) {
    inputs += bytes(input);
  }
  EXPECT_EQ(counts.device_bytes_read, inputs);
  EXPECT_EQ(counts.device_bytes_written, bytes(args.state_out) + bytes(args.y) + bytes(args.conv_state));
  EXPECT_EQ(originals::step_norms(kShape), 2 * 32 * 128);
  EXPECT_GT(originals::step_query_key_bytes(kShape, 2), 100 * 2 * kShape.hk * kShape.k * 2);
}

// Counted over two of the 64 chunks of T = 4096: all traffic is proportional to the number of chunks.
TEST_F(Counted, PrefillMovesAtMostHalfOfTheOriginalsBytes) {
  constexpr originals::Shape kShape{128, 16, 32, 128, 128};
  constexpr originals::Shape kWhole{4096, 16, 32, 128, 128};
  ChunkGatedDeltaRuleArgs args;
  args.q = tensor(DType::kBF16, {1, kShape.tokens, kShape.hk, kShape.k});
  args.k = tensor(DType::kBF16, {1, kShape.tokens, kShape.hk, kShape.k});
  args.v = tensor(DType::kBF16, {1, kShape.tokens, kShape.hv, kShape.v});
  args.g = tensor(DType::kF32, {1, kShape.tokens, kShape.hv});
  args.beta = tensor(DType::kF32, {1, kShape.tokens, kShape.hv});
  args.o = tensor(DType::kBF16, {1, kShape.tokens, kShape.hv, kShape.v});
  args.head_map = HeadMap::kGrouped;
  args.qk_norm = QkNorm::kL2;
  const Counts counts = counts_of(args);
  const std::uint64_t moved = counts.device_bytes_read + counts.device_bytes_written;
  const auto original = static_cast<std::uint64_t>(originals::prefill_bytes(kShape));
  EXPECT_EQ(originals::prefill_bytes(kWhole), originals::prefill_bytes(kShape) * 32);
  EXPECT_LE(2 * moved, original);
  EXPECT_EQ(counts.launches, 2U);
  EXPECT_EQ(counts.dependencies, 1U);
  EXPECT_LE(counts.threadgroup_bytes, 32768U);
  RecordProperty("bytes_per_token", static_cast<int>(moved / static_cast<std::uint64_t>(kShape.tokens)));
  RecordProperty("original_bytes_per_token", static_cast<int>(original / static_cast<std::uint64_t>(kShape.tokens)));
}

}  // namespace
}  // namespace thalweg::metal
