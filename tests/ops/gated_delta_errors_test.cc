// Invalid arguments of the gated delta rule's operations: one clear error each, nothing written.

#include <gtest/gtest.h>

#include <limits>
#include <vector>

#include "ops/expect_error.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg {
namespace {

// A shape common to all operations.
constexpr const char* kStage = "T65_H2_4_K64_V64_F32_C64";
constexpr const char* kSeedStage = "T70_H2_4_K128_V128_BF16_C64_seed";
constexpr const char* kRaggedStage = "ragged_0_5_64_0_0_65_1_130_0_H2_4_K32_V32_F32_C64";
constexpr const char* kRule = "T65_H2_4_K64_V64_F32";
constexpr const char* kRaggedRule = "ragged_65_3_0_20_H2_4_K32_V64_F32_tiled";
constexpr const char* kStep = "B2_T1_H2_4_K64_V64_F32_stateF32_l2norm_conv4_gatednorm";

TEST(BadInput, ChunkLocalCumsum) {
  BadInput<ChunkLocalCumsumArgs> bad(kStage);
  using Args = ChunkLocalCumsumArgs;
  bad.expect([](Args& a) { a.chunk_size = 48; }, "chunk_size", "16, 32 or 64", "48");
  bad.expect([](Args& a) { a.g.dtype = DType::kBF16; }, "g", "F32 [B,T,HV]", "BF16 [1,65,4]");
  bad.expect([](Args& a) { a.g.rank = 2; }, "g", "F32 [B,T,HV]", "F32 [1,65]");
  bad.expect([](Args& a) { a.g_cumsum.shape[1] = 64; }, "g_cumsum", "T=65", "[1,64,4]");
  bad.expect([](Args& a) { a.g_cumsum.data = nullptr; }, "g_cumsum", "memory", "null");
  bad.expect([](Args& a) { a.g = {}; }, "g", "F32 [B,T,HV]", "nothing");
  bad.expect([](Args& a) { a.g.device = {DeviceType::kCuda, 0}; }, "g", "cpu", "cuda");
  bad.expect([](Args& a) { a.g.strides[2] = 2; }, "g", "contiguous innermost", "strides");
  bad.expect([](Args& a) { a.g_cumsum.strides[1] = 3; }, "g_cumsum", "do not overlap", "strides");
  bad.expect([](Args& a) { a.g.strides[1] = -4; }, "g", "strides", "-4");
  // The same memory, shifted by a token: neither in place nor disjoint.
  bad.expect(
      [](Args& a) {
        a.g.data = a.g_cumsum.row(0, 1);
        a.g.shape[1] = a.g_cumsum.shape[1] = 60;
      },
      "g_cumsum", "memory of its own", "overlaps g");
}

TEST(BadInput, CuSeqlens) {
  BadInput<ChunkLocalCumsumArgs> bad(kRaggedStage);
  using Args = ChunkLocalCumsumArgs;
  std::vector<std::int32_t> bounds;
  const auto with = [&bounds](std::vector<std::int32_t> values) {
    bounds = std::move(values);
    return [&bounds](Args& a) {
      a.cu_seqlens = ConstTensor(bounds.data(), DType::kI32, {static_cast<std::int64_t>(bounds.size())}, kCpu);
    };
  };
  bad.expect(with({1, 265}), "cu_seqlens", "first element of 0", "1");
  bad.expect(with({0, 70, 69, 265}), "cu_seqlens", "do not decrease", "70 before 69");
  bad.expect(with({0, 264}), "cu_seqlens", "T = 265", "264");
  bad.expect(with({0, 266}), "cu_seqlens", "T = 265", "266");
  bad.expect(with({0, -1, 265}), "cu_seqlens", "do not decrease", "0 before -1");
  bad.expect([](Args& a) { a.cu_seqlens.dtype = DType::kF32; }, "cu_seqlens", "I32 [N+1]", "F32");
  bad.expect([](Args& a) { a.cu_seqlens.shape[0] = 0; }, "cu_seqlens", "at least one", "[0]");
  const std::vector<float> two_rows(8);
  bad.expect(
      [&](Args& a) {
        a.g = ConstTensor(two_rows.data(), DType::kF32, {2, 1, 4}, kCpu);
      },
      "cu_seqlens", "B = 1", "B = 2");
}

TEST(BadInput, L2norm) {
  BadInput<L2normArgs> bad(kRule);
  using Args = L2normArgs;
  bad.expect([](Args& a) { a.y.dtype = DType::kF16; }, "y", "F32 [B=1,T=65,H=2,K=64]", "F16");
  bad.expect([](Args& a) { a.x.dtype = DType::kQ8_0; }, "x", "F32, F16 or BF16", "Q8_0");
  bad.expect([](Args& a) { a.eps = -1.0F; }, "eps", "0 or more", "-1");
  bad.expect([](Args& a) { a.eps = std::numeric_limits<float>::quiet_NaN(); }, "eps", "0 or more", "nan");
  bad.expect_workspace_errors();
}

TEST(BadInput, ChunkScaledDotKkt) {
  BadInput<ChunkScaledDotKktArgs> bad(kStage);
  using Args = ChunkScaledDotKktArgs;
  bad.expect([](Args& a) { a.head_map = HeadMap::kUnset; }, "head_map", "kGrouped or HeadMap::kTiled", "none");
  bad.expect([](Args& a) { a.rounding = Rounding::kSeed; }, "rounding", "unless k is BF16", "kSeed with F32");
  bad.expect([](Args& a) { a.a.shape[3] = 32; }, "a", "C=64", "[1,65,4,32]");
  bad.expect(
      [](Args& a) {
        a.beta.shape[2] = 3;
        a.g_cumsum.shape[2] = 3;
      },
      "k", "divides HV = 3", "HK = 2");
  bad.expect([](Args& a) { a.beta.shape[1] = 66; }, "beta", "T=65", "[1,66,4]");
  bad.expect([](Args& a) { a.a.data = const_cast<void*>(a.k.data); }, "a", "memory of its own", "overlaps k");
  bad.expect_workspace_errors();
  BadInput<ChunkScaledDotKktArgs> seed(kSeedStage);
  seed.expect([](Args& a) { a.k.dtype = DType::kF16; }, "rounding", "unless k is BF16", "F16");
}

TEST(BadInput, SolveTril) {
  BadInput<SolveTrilArgs> bad("T65_H2_4_K64_V64_F32_C64_toF32");
  using Args = SolveTrilArgs;
  bad.expect([](Args& a) { a.chunk_size = 32; }, "a", "C=32", "[1,65,4,64]");
  bad.expect([](Args& a) { a.a_inv.dtype = DType::kF16; }, "a_inv", "F32 or BF16", "F16");
  // In place requires the same view.
  bad.expect(
      [](Args& a) {
        a.a_inv.data = const_cast<void*>(a.a.data);
        a.a_inv.dtype = DType::kBF16;
      },
      "a_inv", "memory of its own", "overlaps a");
  bad.expect_workspace_errors();
}

TEST(BadInput, RecomputeWU) {
  BadInput<RecomputeWUArgs> bad(kStage);
  using Args = RecomputeWUArgs;
  bad.expect([](Args& a) { a.v.dtype = DType::kBF16; }, "v", "F32 [B=1,T=65,HV,V]", "BF16");
  bad.expect([](Args& a) { a.k.shape[3] = a.w.shape[3] = 48; }, "k", "16, 32, 64, 96, 128, 192 or 256", "48");
  bad.expect([](Args& a) { a.u.data = a.w.data; }, "w", "memory of its own", "overlaps u");
  bad.expect([](Args& a) { a.head_map = static_cast<HeadMap>(7); }, "head_map", "kGrouped", "none");
  bad.expect_workspace_errors();
}

TEST(BadInput, ChunkState) {
  BadInput<ChunkStateArgs> bad(kStage);
  using Args = ChunkStateArgs;
  bad.expect([](Args& a) { a.h.shape[1] = 1; }, "h", "NC=2", "[1,1,4,64,64]");
  bad.expect([](Args& a) { a.initial_state.dtype = DType::kF16; }, "initial_state", "F32 or BF16", "F16");
  bad.expect([](Args& a) { a.final_state.dtype = DType::kBF16; }, "final_state", "F32", "BF16");
  bad.expect([](Args& a) { a.initial_state.shape[0] = 2; }, "initial_state", "N=1", "[2,4,64,64]");
  bad.expect([](Args& a) { a.state_layout = static_cast<StateLayout>(9); }, "state_layout", "kVK", "none");
  bad.expect([](Args& a) { a.w.shape[2] = 2; }, "u", "HV=2", "[1,65,4,64]");
  bad.expect_workspace_errors();
}

TEST(BadInput, ChunkOutput) {
  BadInput<ChunkOutputArgs> bad(kStage);
  using Args = ChunkOutputArgs;
  bad.expect([](Args& a) { a.q.shape[2] = 1; }, "k", "HK=1", "[1,65,2,64]");
  bad.expect([](Args& a) { a.h.shape[3] = 32; }, "h", "V=64", "[1,2,4,32,64]");
  bad.expect([](Args& a) { a.o.dtype = DType::kF16; }, "o", "F32", "F16");
  bad.expect([](Args& a) { a.o.data = const_cast<void*>(a.v_new.data); }, "o", "memory of its own", "overlaps v_new");
  bad.expect_workspace_errors();
}

template <class Args>
void whole_operation_errors() {
  BadInput<Args> bad(kRule);
  bad.expect([](Args& a) { a.head_map = HeadMap::kUnset; }, "head_map", "kGrouped or HeadMap::kTiled", "none");
  bad.expect([](Args& a) { a.k.dtype = DType::kF16; }, "k", "F32 [B=1,T=65,HK=2,K=64]", "F16");
  bad.expect([](Args& a) { a.q.shape[3] = a.k.shape[3] = 63; }, "k", "a head size of 16", "63");
  bad.expect([](Args& a) { a.initial_state.dtype = a.final_state.dtype = DType::kF16; }, "initial_state", "F32 or BF16",
             "F16");
  bad.expect([](Args& a) { a.g = {}; }, "g", "F32 [B=1,T=65,HV=4]", "nothing");
  bad.expect([](Args& a) { a.gates.a = a.g; }, "g", "nothing beside gates", "F32 [1,65,4]");
  bad.expect(
      [](Args& a) {
        a.g = {};
        a.gates.a = a.beta;
        a.beta = {};
      },
      "gates.b", "F32", "nothing");
  bad.expect([](Args& a) { a.qk_norm = QkNorm::kRms; }, "q_norm_weight", "[HK=2,K=64]", "nothing");
  bad.expect([](Args& a) { a.q_norm_weight = a.g; }, "q_norm_weight", "nothing without QkNorm::kRms", "F32");
  bad.expect([](Args& a) { a.o.shape[0] = 0; }, "o", "B=1", "[0,65,4,64]");
  bad.expect([](Args& a) { a.o.data = static_cast<char*>(a.o.data) + 2; }, "o", "aligned", "not");
  bad.expect([](Args& a) { a.final_state.data = a.o.data; }, "final_state", "memory of its own", "overlaps o");
  bad.expect([](Args& a) { a.final_state.shape[3] = 32; }, "final_state", "K=64", "[1,4,64,32]");
  bad.expect([](Args& a) { a.q.shape[1] = std::int64_t{1} << 60; }, "q", "2^48", "1152921504606846976");
  bad.expect_workspace_errors();

  BadInput<Args> pool(std::string(kRaggedRule) + "_pool");
  std::vector<std::int32_t> slots;
  const auto with = [&slots](std::vector<std::int32_t> values) {
    slots = std::move(values);
    return [&slots](Args& a) {
      a.state_indices = ConstTensor(slots.data(), DType::kI32, {static_cast<std::int64_t>(slots.size())}, kCpu);
    };
  };
  pool.expect(with({0, 1, 2, 9}), "state_indices", "-1 or a slot below 9", "9");
  pool.expect(with({0, 1, 2, -2}), "state_indices", "-1 or a slot below 9", "-2");
  pool.expect(with({0, 3, 2, 3}), "state_indices", "differ", "slot 3 twice");
  pool.expect(with({0, 1, 2}), "state_indices", "N=4", "[3]");
  pool.expect(
      [](Args& a) {
        a.initial_state = {};
        a.final_state = {};
      },
      "state_indices", "pool", "neither");
  pool.expect([](Args& a) { a.state_indices = {}; }, "initial_state", "N=4", "[9,4,64,32]");
}

TEST(BadInput, ChunkGatedDeltaRule) {
  using Args = ChunkGatedDeltaRuleArgs;
  whole_operation_errors<Args>();
  BadInput<Args> bad("T260_B2_H2_4_K64_V64_BF16_stateless_checkpoints64");
  bad.expect([](Args& a) { a.checkpoint_tokens = 96; }, "checkpoint_tokens", "multiple of 64", "96");
  bad.expect([](Args& a) { a.checkpoints.shape[1] = 4; }, "checkpoints", "NC=5", "[2,4,4,64,64]");
  bad.expect([](Args& a) { a.checkpoints.dtype = DType::kF16; }, "checkpoints", "F32", "F16");
}

TEST(BadInput, RecurrentGatedDeltaRule) {
  whole_operation_errors<RecurrentGatedDeltaRuleArgs>();
  BadInput<RecurrentGatedDeltaRuleArgs> bad("T4_B3_H2_4_K32_V64_F32_snapshots");
  using Args = RecurrentGatedDeltaRuleArgs;
  bad.expect([](Args& a) { a.snapshots.shape[1] = 3; }, "snapshots", "T=4", "[3,3,4,64,32]");
  bad.expect([](Args& a) { a.snapshots.dtype = DType::kF16; }, "snapshots", "F32", "F16");
}

TEST(BadInput, GatedDeltaPrepStep) {
  BadInput<GatedDeltaPrepStepArgs> bad(kStep);
  using Args = GatedDeltaPrepStepArgs;
  bad.expect([](Args& a) { a.x.shape[2] -= 1; }, "x", "2*HK*K + HV*V", "511");
  bad.expect([](Args& a) { a.state_in = {}; }, "state_in", "a state", "nothing");
  bad.expect([](Args& a) { a.state_out = {}; }, "state_out", "like state_in", "nothing");
  bad.expect([](Args& a) { a.state_in.dtype = DType::kF16; }, "state_in", "F32 or BF16", "F16");
  bad.expect([](Args& a) { a.head_map = HeadMap::kUnset; }, "head_map", "kGrouped", "none");
  bad.expect([](Args& a) { a.gates.b.dtype = DType::kF16; }, "gates.b", "F32", "F16");
  bad.expect([](Args& a) { a.gates.a_log.shape[0] = 2; }, "gates.a_log", "HV=4", "[2]");
  bad.expect([](Args& a) { a.conv_weight.shape[1] = 9; }, "conv_weight", "2 to 8 taps", "9");
  bad.expect([](Args& a) { a.conv_state.shape[2] = 2; }, "conv_state", "W-1=3", "[2,512,2]");
  bad.expect([](Args& a) { a.conv_state = {}; }, "conv_state", "W-1=3", "nothing");
  bad.expect([](Args& a) { a.conv_weight = {}; }, "conv_state", "nothing without conv_weight", "[2,512,3]");
  bad.expect([](Args& a) { a.norm_weight = {}; }, "norm_weight", "[V=64]", "nothing");
  bad.expect([](Args& a) { a.z = {}; }, "norm_weight", "nothing without z", "[64]");
  bad.expect([](Args& a) { a.y.data = const_cast<void*>(a.x.data); }, "y", "memory of its own", "overlaps x");
  bad.expect([](Args& a) { a.state_out.data = static_cast<char*>(a.state_out.data) + 1; }, "state_out", "aligned",
             "not");
  bad.expect_workspace_errors();
}

TEST(BadInput, DraftsOfGatedDeltaPrepStep) {
  BadInput<GatedDeltaPrepStepArgs> bad(
      "B1_T15_H2_4_K64_V64_F32_stateF32_tiled_l2norm_conv4_gatednorm_pool_packed6_replays4_drafts");
  using Args = GatedDeltaPrepStepArgs;
  bad.expect([](Args& a) { a.replay_x.shape[2] -= 1; }, "replay_x", "2*HK*K+HV*V=512", "[13,4,511]");
  bad.expect([](Args& a) { a.replay_x.shape[0] = 6; }, "replay_x", "slots=13", "[6,4,512]");
  bad.expect([](Args& a) { a.replay_x.dtype = DType::kF16; }, "replay_x", "F32", "F16");
  bad.expect([](Args& a) { a.replay_a.shape[1] = 3; }, "replay_a", "R=4", "[13,3,4]");
  bad.expect([](Args& a) { a.replay_b = {}; }, "replay_b", "R=4", "nothing");
  bad.expect([](Args& a) { a.replay_counts = {}; }, "replay_counts", "[N=6]", "nothing");
  bad.expect([](Args& a) { a.replay_x.shape[1] = a.replay_a.shape[1] = a.replay_b.shape[1] = 3; }, "replay_counts",
             "0 to R=3", "4");
  bad.expect([](Args& a) { a.state_in.dtype = a.state_out.dtype = DType::kBF16; }, "state_in", "F32 with replay_x",
             "BF16");
  bad.expect([](Args& a) { a.conv_state.dtype = DType::kF16; }, "conv_state", "F32 or the dtype of x", "F16");
  bad.expect(
      [](Args& a) {
        a.snapshots = a.y;
        a.snapshots.rank = 5;
        a.snapshots.shape = {1, 15, 4, 64, 64};
      },
      "snapshots", "", "");
  bad.expect(
      [](Args& a) {
        a.replay_x = {};
        a.drafts = false;
      },
      "replay_a", "nothing without replay_x", "[13,4,4]");
}

// Interleaved views of one packed tensor, as q, k and v of a projection, are disjoint.
TEST(BadInput, SlicesOfOnePackedTensorDoNotOverlap) {
  constexpr std::int64_t kTokens = 5;
  constexpr std::int64_t kWidth = 2 * 4 * 16;
  std::vector<float> packed(kTokens * kWidth, 0.5F);
  ConstTensor x(packed.data(), DType::kF32, {1, kTokens, 4, 16}, kCpu);
  Tensor y(packed.data() + kWidth / 2, DType::kF32, {1, kTokens, 4, 16}, kCpu);
  x.strides[1] = y.strides[1] = kWidth;
  HostWorkspace scratch;
  const Workspace workspace = scratch.reserve(1 << 12);
  EXPECT_NO_THROW(l2norm({.x = x, .y = y}, workspace, Stream::cpu(1)));
  EXPECT_FLOAT_EQ(packed[kWidth / 2], 0.25F);
  EXPECT_FLOAT_EQ(packed[0], 0.5F);
  Tensor shifted = y;
  shifted.data = packed.data() + 8;
  expect_error([&] { l2norm({.x = x, .y = shifted}, workspace, Stream::cpu(1)); }, "l2norm", "y", "memory of its own",
               "overlaps x");
}

TEST(BadInput, BackendsThatAreNotThere) {
  Tensor x(nullptr, DType::kF32, {1, 0, 2, 16}, {DeviceType::kMetal, 0});
  const Stream stream{{DeviceType::kMetal, 0}, 0, nullptr};
  expect_error([&] { workspace_size(L2normArgs{.x = x, .y = x}, stream); }, "l2norm", "stream", "an available backend",
               "Metal");
}

}  // namespace
}  // namespace thalweg
