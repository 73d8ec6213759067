// RowHint on a GPU: the cases of each operation, and calls as large as those of published models, whose sums are
// divided among blocks by the number of rows where no hint forbids it.

#include "ops/row_hints.h"

#include "cases/experts.h"
#include "cases/gated_delta.h"
#include "cuda/device.h"

namespace thalweg {
namespace {

using cases::Memory;
using cases::Random;

template <class Args>
class RowHintsOnDevice : public OnDevice {};
TYPED_TEST_SUITE(RowHintsOnDevice, row_hints::Operations, row_hints::OperationName);

TYPED_TEST(RowHintsOnDevice, RowsHaveTheBitsThatTheyHaveAlone) {
  row_hints::expect_rows_alone_in_cases<TypeParam>(cuda_stream());
}

class RowHintsOfLargeCalls : public OnDevice {
 protected:
  template <class Args>
  void expect_rows_alone(const Args& args, const std::string& name) {
    row_hints::expect_rows_alone(args, memory_, cuda_stream(), name);
  }
  Tensor normals(DType dtype, const std::vector<std::int64_t>& shape) {
    return memory_.input(dtype, shape, [this] { return random_.normal(); });
  }

  Random random_{11};
  Memory memory_;
};

TEST_F(RowHintsOfLargeCalls, Linear) {
  for (const std::int64_t rows : {24, 140}) {
    for (const DType type : {DType::kQ4_K, DType::kQ6_K, DType::kQ8_0, DType::kMXFP4, DType::kBF16}) {
      for (const std::int64_t n : {64, 2048, 9000}) {
        LinearArgs args;
        args.precision = MatmulPrecision::kFast;
        args.x = normals(DType::kBF16, {rows, 2048});
        args.weight = cases::make_weights(memory_, type, {n, 2048}, random_);
        args.y = memory_.output(DType::kBF16, {rows, n});
        expect_rows_alone(args, std::string(dtype_name(type)) + " " + std::to_string(n));
        memory_ = Memory();
      }
    }
  }
}

TEST_F(RowHintsOfLargeCalls, MoeFfn) {
  for (const DType type : {DType::kQ4_K, DType::kQ6_K, DType::kQ8_0, DType::kMXFP4}) {
    constexpr std::int64_t kHidden = 1024;
    constexpr std::int64_t kExperts = 160;
    constexpr std::int64_t kInner = 256;
    MoeFfnArgs args;
    args.precision = MatmulPrecision::kFast;
    args.x = normals(DType::kBF16, {150, kHidden});
    args.router = memory_.input(DType::kF32, {kExperts, kHidden}, [this] { return 0.03 * random_.normal(); });
    args.gate = cases::make_weights(memory_, type, {kExperts, kInner, kHidden}, random_);
    args.up = cases::make_weights(memory_, type, {kExperts, kInner, kHidden}, random_);
    args.down = cases::make_weights(memory_, type, {kExperts, kHidden, kInner}, random_);
    args.shared_gate = cases::make_weights(memory_, type, {kInner, kHidden}, random_);
    args.shared_up = cases::make_weights(memory_, type, {kInner, kHidden}, random_);
    args.shared_down = cases::make_weights(memory_, type, {kHidden, kInner}, random_);
    args.shared_router = normals(DType::kF32, {kHidden});
    args.y = memory_.output(DType::kBF16, {150, kHidden});
    args.top_k = 8;
    expect_rows_alone(args, std::string(dtype_name(type)));
    memory_ = Memory();
  }
}

TEST_F(RowHintsOfLargeCalls, Attention) {
  const std::vector<std::vector<std::int64_t>> batches = {{1, 1, 1, 1, 1, 1, 1}, {1, 64, 300, 4, 1, 129, 3}};
  for (const std::int64_t width : {64, 256}) {
    for (const DType cache : {DType::kBF16, DType::kQ8_0}) {
      for (const std::vector<std::int64_t>& fresh : batches) {
        std::int64_t tokens = 0;
        std::vector<std::int64_t> lengths = {5000, 64, 300, 1029, 128, 4000, 2};
        for (std::size_t n = 0; n < fresh.size(); ++n) {
          tokens += fresh[n];
          lengths[n] = std::max(lengths[n], fresh[n]);
        }
        AttentionArgs args;
        args.q = normals(DType::kBF16, {tokens, 16, width});
        const std::vector<std::int64_t> sizes = {7, 5000, 2, width};
        const auto normal = [this] { return random_.normal(); };
        args.k_cache = cache == DType::kQ8_0 ? cases::q8_0_input(memory_, sizes, normal) : normals(cache, sizes);
        args.v_cache = cache == DType::kQ8_0 ? cases::q8_0_input(memory_, sizes, normal) : normals(cache, sizes);
        args.cu_seqlens = cases::cu_seqlens_of(memory_, fresh);
        args.lengths = cases::integers(memory_, lengths);
        args.gate = normals(DType::kBF16, {tokens, 16, width});
        args.o = memory_.output(DType::kBF16, {tokens, 16, width});
        expect_rows_alone(args, std::string(dtype_name(cache)) + " " + std::to_string(width));
        memory_ = Memory();
      }
    }
  }
}

TEST_F(RowHintsOfLargeCalls, ChunkGatedDeltaRule) {
  cases::RuleShape shape;
  shape.hk = 16;
  shape.hv = 32;
  shape.k = shape.v = 128;
  shape.lengths = {64, 2500, 1, 130, 700};
  shape.dtype = DType::kBF16;
  const cases::RuleInputs inputs = cases::make_rule_inputs(shape, memory_, random_);
  ChunkGatedDeltaRuleArgs args;
  args.q = inputs.q;
  args.k = inputs.k;
  args.v = inputs.v;
  args.g = inputs.g;
  args.beta = inputs.beta;
  args.cu_seqlens = inputs.cu_seqlens;
  const std::vector<std::int64_t> states = {5, 32, 128, 128};
  args.initial_state = memory_.input(DType::kF32, states, [this] { return 0.1 * random_.normal(); });
  args.final_state = memory_.output(DType::kF32, states);
  args.o = memory_.output(DType::kBF16, {1, shape.total_tokens(), 32, 128});
  args.head_map = HeadMap::kGrouped;
  expect_rows_alone(args, shape.name());
}

TEST_F(RowHintsOfLargeCalls, GatedDeltaPrepStep) {
  constexpr std::int64_t kSequences = 24;
  constexpr std::int64_t kChannels = 2 * 16 * 128 + 32 * 128;
  for (const DType state : {DType::kF32, DType::kBF16}) {
    GatedDeltaPrepStepArgs args;
    args.x = normals(DType::kBF16, {kSequences, 1, kChannels});
    args.conv_weight = normals(DType::kF32, {kChannels, 4});
    const auto normal = [this] { return random_.normal(); };
    args.conv_state = memory_.in_out(DType::kBF16, {kSequences, kChannels, 3}, normal);
    args.gates = cases::make_gates(kSequences, 1, 32, DType::kBF16, memory_, random_);
    const Tensor states = memory_.in_out(state, {kSequences, 32, 128, 128}, [this] { return 0.1 * random_.normal(); });
    args.state_in = states;
    args.state_out = states;
    args.z = normals(DType::kBF16, {kSequences, 1, 32, 128});
    args.norm_weight = normals(DType::kF32, {128});
    args.y = memory_.output(DType::kBF16, {kSequences, 1, 32, 128});
    args.qk_norm = QkNorm::kL2;
    args.head_map = HeadMap::kGrouped;
    expect_rows_alone(args, std::string(dtype_name(state)));
    memory_ = Memory();
  }
}

TEST_F(RowHintsOfLargeCalls, GatedDeltaPrepStepOfDrafts) {
  constexpr std::int64_t kSequences = 9;
  constexpr std::int64_t kTokens = 4;
  constexpr std::int64_t kReplays = kTokens - 1;
  constexpr std::int64_t kChannels = 2 * 16 * 128 + 32 * 128;
  const auto normal = [this] { return random_.normal(); };
  GatedDeltaPrepStepArgs args;
  args.x = normals(DType::kBF16, {kSequences, kTokens, kChannels});
  args.conv_weight = normals(DType::kF32, {kChannels, 4});
  args.conv_state = memory_.in_out(DType::kBF16, {kSequences, kChannels, 3}, normal);
  args.gates = cases::make_gates(kSequences, kTokens, 32, DType::kBF16, memory_, random_);
  const Tensor states =
      memory_.in_out(DType::kF32, {kSequences, 32, 128, 128}, [this] { return 0.1 * random_.normal(); });
  args.state_in = states;
  args.state_out = states;
  args.drafts = true;
  args.replay_x = memory_.in_out(DType::kBF16, {kSequences, kReplays, kChannels}, normal);
  args.replay_a = memory_.in_out(DType::kBF16, {kSequences, kReplays, 32}, normal);
  args.replay_b = memory_.in_out(DType::kBF16, {kSequences, kReplays, 32}, normal);
  std::vector<std::int64_t> counts;
  for (std::int64_t n = 0; n < kSequences; ++n) counts.push_back(n % (kReplays + 1));
  args.replay_counts = cases::integers(memory_, counts);
  args.z = normals(DType::kBF16, {kSequences, kTokens, 32, 128});
  args.norm_weight = normals(DType::kF32, {128});
  args.y = memory_.output(DType::kBF16, {kSequences, kTokens, 32, 128});
  args.qk_norm = QkNorm::kL2;
  args.head_map = HeadMap::kGrouped;
  expect_rows_alone(args, "drafts");
}

}  // namespace
}  // namespace thalweg
