// Invalid arguments of the dense operations: one clear error each, nothing written.

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <type_traits>
#include <vector>

#include "ops/expect_error.h"
#include "thalweg/nn.h"

namespace thalweg {
namespace {

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// An i32 argument with given values.
class Integers {
 public:
  explicit Integers(std::vector<std::int32_t> values) : values_(std::move(values)) {}
  ConstTensor view() const { return {values_.data(), DType::kI32, {static_cast<std::int64_t>(values_.size())}, kCpu}; }

 private:
  std::vector<std::int32_t> values_;
};

TEST(BadInput, CausalConv1d) {
  using Args = CausalConv1dArgs;
  BadInput<Args> bad("T66_B2_C48_W4_F32_in_place");
  bad.expect([](Args& a) { a.x.rank = 2; }, "x", "F32, F16 or BF16 [B,T,C]", "F32 [2,66]");
  bad.expect([](Args& a) { a.x.dtype = DType::kI32; }, "x", "F32, F16 or BF16", "I32");
  bad.expect([](Args& a) { a.x.strides[2] = 2; }, "x", "contiguous innermost", "strides");
  bad.expect([](Args& a) { a.weight.shape[0] = 47; }, "weight", "C=48", "[47,4]");
  bad.expect([](Args& a) { a.weight.shape[1] = 1; }, "weight", "between 2 and 8 taps", "1");
  bad.expect([](Args& a) { a.weight.shape[1] = 9; }, "weight", "between 2 and 8 taps", "9");
  bad.expect([](Args& a) { a.weight.dtype = DType::kQ8_0; }, "weight", "F32, F16 or BF16", "Q8_0");
  bad.expect([](Args& a) { a.bias = ConstTensor(a.x.data, DType::kBF16, {48}, a.x.device); }, "bias", "F32 [C=48]",
             "BF16 [48]");
  bad.expect([](Args& a) { a.bias = ConstTensor(a.x.data, DType::kF32, {49}, a.x.device); }, "bias", "F32 [C=48]",
             "F32 [49]");
  bad.expect([](Args& a) { a.initial_state.shape[2] = 4; }, "initial_state", "W-1=3", "[2,48,4]");
  bad.expect([](Args& a) { a.initial_state.shape[0] = 3; }, "initial_state", "N=2", "[3,48,3]");
  bad.expect([](Args& a) { a.final_state.dtype = DType::kF16; }, "final_state", "F32 [N=2,C=48,W-1=3]", "F16");
  bad.expect([](Args& a) { a.activation = static_cast<Activation>(5); }, "activation", "kNone or Activation::kSilu",
             "none");
  bad.expect([](Args& a) { a.y.shape[1] = 65; }, "y", "T=66", "[2,65,48]");
  bad.expect([](Args& a) { a.y.dtype = DType::kBF16; }, "y", "F32", "BF16");
  bad.expect([](Args& a) { a.y.strides[1] = 0; }, "y", "do not overlap", "strides");
  bad.expect([](Args& a) { a.x.data = a.y.data; }, "y", "memory of its own", "overlaps x");
  bad.expect([](Args& a) { a.x.data = nullptr; }, "x", "memory", "null");
  // In place requires the same view.
  bad.expect(
      [](Args& a) {
        a.final_state.shape[0] = a.initial_state.shape[0] = 1;
        a.x.shape[0] = a.y.shape[0] = 1;
        a.final_state.data = a.final_state.row(0, 1);
        a.final_state.shape[1] = a.initial_state.shape[1] = a.weight.shape[0] = a.x.shape[2] = a.y.shape[2] = 40;
      },
      "final_state", "memory of its own", "overlaps initial_state");
  bad.expect_workspace_errors();
}

TEST(BadInput, CausalConv1dSequencesAndSlots) {
  using Args = CausalConv1dArgs;
  BadInput<Args> bad("ragged_3_64_1_C48_W4_F32_slots_2_-1_4");
  const Integers late({1, 3, 67, 68});
  bad.expect([&](Args& a) { a.cu_seqlens = late.view(); }, "cu_seqlens", "first element of 0", "1");
  const Integers falling({0, 4, 3, 68});
  bad.expect([&](Args& a) { a.cu_seqlens = falling.view(); }, "cu_seqlens", "do not decrease", "4 before 3");
  const Integers too_long({0, 3, 67, 69});
  bad.expect([&](Args& a) { a.cu_seqlens = too_long.view(); }, "cu_seqlens", "T = 68", "69");
  const Integers outside({0, 5, 1});
  bad.expect([&](Args& a) { a.state_indices = outside.view(); }, "state_indices", "-1 or a slot below 5", "5");
  const Integers below({0, -2, 1});
  bad.expect([&](Args& a) { a.state_indices = below.view(); }, "state_indices", "-1 or a slot below 5", "-2");
  const Integers twice({3, 0, 3});
  bad.expect([&](Args& a) { a.state_indices = twice.view(); }, "state_indices", "differ", "slot 3 twice");
  const Integers few({3, 0});
  bad.expect([&](Args& a) { a.state_indices = few.view(); }, "state_indices", "N=3", "[2]");
  bad.expect([](Args& a) { a.state_indices = {}; }, "initial_state", "N=3", "[5,48,3]");
  bad.expect(
      [](Args& a) {
        a.initial_state = {};
        a.final_state = {};
      },
      "state_indices", "a state pool", "neither");
}

TEST(BadInput, CausalConv1dUpdate) {
  using Args = CausalConv1dUpdateArgs;
  BadInput<Args> bad("T2_B2_C48_W4_BF16_sBF16_slots_-1_-1");
  bad.expect([](Args& a) { a.x.shape[2] = 40; }, "weight", "C=40", "[48,4]");
  bad.expect([](Args& a) { a.weight.shape[1] = 5; }, "conv_state", "W-1=4", "[4,48,3]");
  bad.expect([](Args& a) { a.weight.shape[1] = 12; }, "weight", "between 2 and 8 taps", "12");
  bad.expect([](Args& a) { a.conv_state = {}; }, "conv_state", "[slots,C=48,W-1=3]", "nothing");
  bad.expect([](Args& a) { a.conv_state.dtype = DType::kQ4_0; }, "conv_state", "F32, F16 or BF16", "Q4_0");
  bad.expect([](Args& a) { a.conv_state.strides[0] = 3; }, "conv_state", "do not overlap", "strides");
  bad.expect([](Args& a) { a.state_indices = {}; }, "conv_state", "B=2", "[4,48,3]");
  const Integers outside({4, 0});
  bad.expect([&](Args& a) { a.state_indices = outside.view(); }, "state_indices", "-1 or a slot below 4", "4");
  const Integers twice({1, 1});
  bad.expect([&](Args& a) { a.state_indices = twice.view(); }, "state_indices", "differ", "slot 1 twice");
  bad.expect([](Args& a) { a.activation = static_cast<Activation>(2); }, "activation", "kSilu", "none");
  bad.expect([](Args& a) { a.y.dtype = DType::kF32; }, "y", "BF16 [B=2,T=2,C=48]", "F32");
  bad.expect([](Args& a) { a.conv_state.data = a.y.data; }, "conv_state", "memory of its own", "overlaps y");
  bad.expect(
      [](Args& a) {
        a.x.data = a.y.row(0, 1);
        a.x.shape[1] = a.y.shape[1] = 1;
        a.y.strides[0] = 96;
        a.x.strides[0] = 48;
      },
      "y", "memory of its own", "overlaps x");
  bad.expect_workspace_errors();
}

TEST(BadInput, RmsNorm) {
  using Args = RmsNormArgs;
  BadInput<Args> bad("T5_D64_F32_in_place");
  bad.expect([](Args& a) { a.x.rank = 1; }, "x", "[T,D] or [T,H,D]", "F32 [5]");
  bad.expect([](Args& a) { a.x = {}; }, "x", "[T,D] or [T,H,D]", "nothing");
  bad.expect([](Args& a) { a.x.dtype = DType::kI32; }, "x", "F32, F16 or BF16", "I32");
  bad.expect([](Args& a) { a.weight.shape[0] = 63; }, "weight", "D=64", "[63]");
  bad.expect([](Args& a) { a.weight = {}; }, "weight", "D=64", "nothing");
  bad.expect([](Args& a) { a.y.dtype = DType::kI32; }, "y", "F32, F16 or BF16", "I32");
  bad.expect([](Args& a) { a.sum = a.y; }, "sum", "nothing without delta", "F32 [5,64]");
  bad.expect([](Args& a) { a.y.shape[0] = 6; }, "y", "T=5", "[6,64]");
  bad.expect([](Args& a) { a.eps = -1e-3F; }, "eps", "0 or more", "-0.001");
  bad.expect([](Args& a) { a.eps = kNan; }, "eps", "0 or more", "nan");
  bad.expect(
      [](Args& a) {
        a.x.shape[0] = a.y.shape[0] = 4;
        a.y.data = a.y.row(1);
      },
      "y", "memory of its own", "overlaps x");
  bad.expect([](Args& a) { a.weight.data = a.y.data; }, "y", "memory of its own", "overlaps weight");
  bad.expect([](Args& a) { a.x.device = {DeviceType::kCuda, 0}; }, "x", "the stream's device, cpu", "cuda");
  bad.expect(
      [](Args& a) {
        a.x.shape[1] = 0;
        a.weight.shape[0] = 0;
        a.y.shape[1] = 0;
      },
      "x", "at least one element", "[5,0]");
  bad.expect_workspace_errors();
}

TEST(BadInput, GatedRmsNorm) {
  using Args = GatedRmsNormArgs;
  BadInput<Args> bad("T5_H2_D100_BF16_toF32");
  bad.expect([](Args& a) { a.z.dtype = DType::kF16; }, "z", "BF16 [T=5,H=2,D=100]", "F16");
  bad.expect([](Args& a) { a.z.shape[1] = 1; }, "z", "H=2", "[5,1,100]");
  bad.expect([](Args& a) { a.weight.rank = 2; }, "weight", "[D=100]", "F32 [100,0]");
  bad.expect([](Args& a) { a.y.dtype = DType::kF16; }, "y", "BF16 or F32", "F16");
  bad.expect([](Args& a) { a.eps = kNan; }, "eps", "0 or more", "nan");
  // The result is wider than the inputs and cannot alias them.
  bad.expect([](Args& a) { a.z.data = a.y.data; }, "y", "memory of its own", "overlaps z");
  bad.expect([](Args& a) { a.y.data = static_cast<char*>(a.y.data) + 2; }, "y", "aligned", "not");
  bad.expect_workspace_errors();
}

TEST(BadInput, Rope) {
  using Args = RopeArgs;
  BadInput<Args> bad("T7_H3_D64_R32_F32");
  bad.expect([](Args& a) { a.rotary_dim = 15; }, "rotary_dim", "an even number from 2 to D = 64", "15");
  bad.expect([](Args& a) { a.rotary_dim = 0; }, "rotary_dim", "an even number from 2 to D = 64", "0");
  bad.expect([](Args& a) { a.rotary_dim = 66; }, "rotary_dim", "an even number from 2 to D = 64", "66");
  bad.expect([](Args& a) { a.theta = 0.0F; }, "theta", "positive finite", "0");
  bad.expect([](Args& a) { a.theta = kInfinity; }, "theta", "positive finite", "inf");
  bad.expect([](Args& a) { a.scale = 0.0F; }, "scale", "positive finite", "0");
  bad.expect([](Args& a) { a.scale = -1.0F; }, "scale", "positive finite", "-1");
  bad.expect([](Args& a) { a.scale = kInfinity; }, "scale", "positive finite", "inf");
  bad.expect([](Args& a) { a.scale = kNan; }, "scale", "positive finite", "nan");
  std::array<float, 16> frequencies{};
  std::array<float, std::size_t{7} * 3 * 64> memory{};
  const auto given = [&](Args& a) { a.frequencies = ConstTensor(frequencies.data(), DType::kF32, {16}, kCpu); };
  bad.expect(
      [&](Args& a) {
        given(a);
        a.frequencies.shape[0] = 15;
      },
      "frequencies", "F32 [rotary_dim/2=16]", "F32 [15]");
  bad.expect(
      [&](Args& a) {
        given(a);
        a.frequencies.dtype = DType::kI32;
      },
      "frequencies", "F32 [rotary_dim/2=16]", "I32 [16]");
  bad.expect(
      [&](Args& a) {
        a.y = Tensor(memory.data(), DType::kF32, {7, 3, 64}, kCpu);
        a.frequencies = ConstTensor(memory.data() + 40, DType::kF32, {16}, kCpu);
      },
      "y", "memory of its own", "overlaps frequencies");
  frequencies[3] = kNan;
  bad.expect(given, "frequencies", "finite values", "nan");
  frequencies[3] = kInfinity;
  bad.expect(given, "frequencies", "finite values", "inf");
  bad.expect([](Args& a) { a.positions.shape[0] = 6; }, "positions", "I32 [T=7]", "I32 [6]");
  bad.expect([](Args& a) { a.positions.dtype = DType::kF32; }, "positions", "I32 [T=7]", "F32 [7]");
  const Integers negative({0, 1, 2, -3, 4, 5, 6});
  bad.expect([&](Args& a) { a.positions = negative.view(); }, "positions", "0 or more", "-3");
  bad.expect([](Args& a) { a.y.dtype = DType::kBF16; }, "y", "F32 [T=7,H=3,D=64]", "BF16");
  bad.expect([](Args& a) { a.x.rank = 2; }, "x", "[T,H,D]", "F32 [7,3]");
  bad.expect(
      [](Args& a) {
        a.x.data = a.y.row(0, 1);
        a.x.shape[1] = a.y.shape[1] = 2;
      },
      "y", "memory of its own", "overlaps x");
  bad.expect_workspace_errors();
}

TEST(BadInput, Attention) {
  using Args = AttentionArgs;
  // Sequences of 2, 9 and 1 new tokens with 9, 9 and 41 cached, in slots of 60.
  BadInput<Args> bad("new_2_9_1_after_7_0_40_slots_4_1_1_S60_H4_2_D32_F32_cacheF32_gate");
  bad.expect(
      [](Args& a) {
        a.q.shape[1] = 3;
        a.gate.shape[1] = 3;
      },
      "k_cache", "divides HQ = 3", "HKV = 2");
  bad.expect([](Args& a) { a.q.dtype = DType::kI32; }, "q", "F32, F16 or BF16", "I32");
  bad.expect([](Args& a) { a.k_cache.shape[3] = 16; }, "k_cache", "D=32", "[5,60,2,16]");
  bad.expect([](Args& a) { a.k_cache.dtype = DType::kQ4_0; }, "k_cache", "F32, F16, BF16 or Q8_0", "Q4_0");
  bad.expect([](Args& a) { a.v_cache.shape[1] = 59; }, "v_cache", "S=60", "[5,59,2,32]");
  bad.expect([](Args& a) { a.v_cache.dtype = DType::kF16; }, "v_cache", "F32 [", "F16");
  bad.expect([](Args& a) { a.cu_seqlens = {}; }, "cu_seqlens", "I32 [N+1]", "nothing");
  const Integers backwards({0, 11, 2, 12});
  bad.expect([&](Args& a) { a.cu_seqlens = backwards.view(); }, "cu_seqlens", "do not decrease", "11 before 2");
  const Integers short_of({0, 2, 11, 11});
  bad.expect([&](Args& a) { a.cu_seqlens = short_of.view(); }, "cu_seqlens", "T = 12", "11");
  const Integers two({9, 9});
  bad.expect([&](Args& a) { a.lengths = two.view(); }, "lengths", "I32 [N=3]", "I32 [2]");
  const Integers fewer_than_new({9, 8, 41});
  bad.expect([&](Args& a) { a.lengths = fewer_than_new.view(); }, "lengths", "9 new tokens", "8 for sequence 1");
  const Integers beyond({9, 9, 61});
  bad.expect([&](Args& a) { a.lengths = beyond.view(); }, "lengths", "S = 60", "61 for sequence 2");
  const Integers no_slot({4, 5, 1});
  bad.expect([&](Args& a) { a.slots = no_slot.view(); }, "slots", "from 0 to 4", "5 for sequence 1");
  const Integers negative({-2, 4, 1});
  bad.expect([&](Args& a) { a.slots = negative.view(); }, "slots", "-1 or a slot from 0 to 4", "-2 for sequence 0");
  bad.expect(
      [](Args& a) {
        a.slots = {};
        a.k_cache.shape[0] = a.v_cache.shape[0] = 2;
      },
      "k_cache", "N = 3 sequences", "2 slots");
  bad.expect([](Args& a) { a.gate.dtype = DType::kBF16; }, "gate", "F32 [T=12,HQ=4,D=32]", "BF16");
  bad.expect([](Args& a) { a.o.dtype = DType::kF16; }, "o", "F32 [T=12,HQ=4,D=32]", "F16");
  bad.expect([](Args& a) { a.scale = kNan; }, "scale", "finite", "nan");
  bad.expect([](Args& a) { a.q.data = a.o.data; }, "o", "memory of its own", "overlaps q");
  bad.expect([](Args& a) { a.gate.data = a.o.data; }, "o", "memory of its own", "overlaps gate");
  bad.expect([](Args& a) { a.o.data = const_cast<void*>(a.v_cache.data); }, "o", "memory of its own",
             "overlaps v_cache");
  bad.expect_workspace_errors();
}

TEST(BadInput, CachesOfBlocks) {
  BadInput<AttentionArgs> read("new_1_after_130_S131_H8_2_D96_F32_cacheQ8_0_gate");
  BadInput<StoreKvArgs> stored("new_3_1_after_2_7_S12_H2_D32_F32_cacheQ8_0");
  const auto expect_both = [&](const auto& change, std::string_view argument, std::string_view expected,
                               std::string_view given) {
    read.expect(change, argument, expected, given);
    stored.expect(change, argument, expected, given);
  };
  const auto odd = []<class Pointer>(BasicTensor<Pointer>& view) {
    using Byte = std::conditional_t<std::is_const_v<std::remove_pointer_t<Pointer>>, const char, char>;
    view.data = static_cast<Byte*>(view.data) + 1;
  };
  expect_both([&](auto& a) { odd(a.k_cache); }, "k_cache", "an even address", "odd");
  expect_both([&](auto& a) { odd(a.v_cache); }, "v_cache", "an even address", "odd");
  expect_both([](auto& a) { a.k_cache.strides[2] += 1; }, "k_cache", "whole blocks of 32", "Q8_0");
  expect_both([](auto& a) { a.v_cache.dtype = DType::kF16; }, "v_cache", "Q8_0 [", "F16");
}

TEST(BadInput, AttentionPages) {
  using Args = AttentionArgs;
  // Sequences of 2, 1 and 30 new tokens with 7, 10 and 100 cached, the second of them absent; 7 pages each.
  BadInput<Args> bad("new_2_1_30_after_5_9_70_page16_absent_1_S100_H4_2_D32_F32_cacheF32_gate");
  const Integers slots({0, 1, 2});
  bad.expect([&](Args& a) { a.slots = slots.view(); }, "pages", "nothing beside slots", "[3,7]");
  bad.expect([](Args& a) { a.pages.shape[0] = 2; }, "pages", "I32 [N=3,P]", "I32 [2,7]");
  bad.expect([](Args& a) { a.pages.shape[1] = 0; }, "pages", "at least one page", "I32 [3,0]");
  bad.expect([](Args& a) { a.pages.dtype = DType::kF32; }, "pages", "I32", "F32");
  bad.expect([](Args& a) { a.pages.shape[1] = 6; }, "lengths", "P*S = 96", "100 for sequence 2");
  const Integers fewer_than_new({1, 0, 100});
  bad.expect([&](Args& a) { a.lengths = fewer_than_new.view(); }, "lengths", "2 new tokens", "1 for sequence 0");
  bad.expect([](Args& a) { a.k_cache.shape[0] = a.v_cache.shape[0] = 3; }, "pages", "a page from 0 to 2",
             "for sequence");
}

TEST(BadInput, StoreKv) {
  using Args = StoreKvArgs;
  // Sequences of 2, 0, 5 and 1 new tokens with 12, 3, 5 and 5 cached, in slots of 12.
  BadInput<Args> bad("new_2_0_5_1_after_10_3_0_4_slots_5_0_2_1_S12_H2_D32_F32_cacheF16");
  bad.expect([](Args& a) { a.k.rank = 2; }, "k", "[T,HKV,D]", "F32 [8,2]");
  bad.expect([](Args& a) { a.v.dtype = DType::kF16; }, "v", "F32 [T=8,HKV=2,D=32]", "F16");
  bad.expect([](Args& a) { a.k_cache.dtype = DType::kQ4_0; }, "k_cache", "F32, F16, BF16 or Q8_0", "Q4_0");
  bad.expect([](Args& a) { a.k_cache.shape[2] = 1; }, "k_cache", "HKV=2", "[6,12,1,32]");
  bad.expect([](Args& a) { a.v_cache.dtype = DType::kBF16; }, "v_cache", "F16 [", "BF16");
  bad.expect([](Args& a) { a.v_cache.shape[1] = 11; }, "v_cache", "S=12", "[6,11,2,32]");
  bad.expect([](Args& a) { a.cu_seqlens = {}; }, "cu_seqlens", "I32 [N+1]", "nothing");
  const Integers fewer_than_new({1, 3, 5, 5});
  bad.expect([&](Args& a) { a.lengths = fewer_than_new.view(); }, "lengths", "2 new tokens", "1 for sequence 0");
  const Integers beyond({12, 3, 5, 13});
  bad.expect([&](Args& a) { a.lengths = beyond.view(); }, "lengths", "S = 12", "13 for sequence 3");
  const Integers no_slot({5, 0, 6, 1});
  bad.expect([&](Args& a) { a.slots = no_slot.view(); }, "slots", "from 0 to 5", "6 for sequence 2");
  const Integers twice({5, 0, 5, 1});
  bad.expect([&](Args& a) { a.slots = twice.view(); }, "slots", "each slot once", "5 twice");
  bad.expect(
      [](Args& a) {
        a.slots = {};
        a.k_cache.shape[0] = a.v_cache.shape[0] = 3;
      },
      "k_cache", "N = 4 sequences", "3 slots");
  bad.expect([](Args& a) { a.v_cache.data = a.k_cache.data; }, "k_cache", "memory of its own", "overlaps v_cache");
  bad.expect([](Args& a) { a.k.data = a.v_cache.data; }, "v_cache", "memory of its own", "overlaps k");
  bad.expect_workspace_errors();
}

TEST(BadInput, StoreKvPages) {
  using Args = StoreKvArgs;
  // Sequences of 3 and 9 new tokens with 6 and 10 cached, three pages of 4 each.
  BadInput<Args> bad("new_3_9_after_3_1_pages_1_4_2_5_6_0_S4_H2_D32_F32_cacheF16_strided");
  const auto with_pages = [](const Integers& values) {
    return [&values](Args& a) { a.pages = ConstTensor(values.view().data, DType::kI32, {2, 3}, Device{}); };
  };
  const Integers absent_page({1, 4, -1, 5, -1, 0});
  bad.expect(with_pages(absent_page), "pages", "10 tokens a page from 0 to 8", "-1 for sequence 1");
  const Integers beyond({1, 9, -1, 5, 6, 0});
  bad.expect(with_pages(beyond), "pages", "6 tokens a page from 0 to 8", "9 for sequence 0");
  const Integers twice({1, 4, -1, 5, 6, 4});
  bad.expect(with_pages(twice), "pages", "pages of their own", "4 twice");
}

TEST(BadInput, SplitQkvz) {
  using Args = SplitQkvzArgs;
  BadInput<Args> bad("T5_H3_K16_RV48_F32");
  bad.expect([](Args& a) { a.x.shape[2] = 127; }, "x", "2*K+2*RV=128 columns", "[5,3,127]");
  bad.expect([](Args& a) { a.q.shape[2] = 15; }, "k", "K=15", "[5,3,16]");
  bad.expect([](Args& a) { a.k.dtype = DType::kF16; }, "k", "F32 [T=5,HK=3,K=16]", "F16");
  bad.expect([](Args& a) { a.z.shape[1] = 2; }, "z", "HK=3", "[5,2,48]");
  bad.expect([](Args& a) { a.z.data = a.v.data; }, "v", "memory of its own", "overlaps z");
  bad.expect([](Args& a) { a.x.data = a.v.data; }, "v", "memory of its own", "overlaps x");
}

TEST(BadInput, Add) {
  using Args = AddArgs;
  BadInput<Args> bad("T5_D70_F32_on_second");
  bad.expect([](Args& a) { a.a.rank = 1; }, "a", "[T,D]", "F32 [5]");
  bad.expect([](Args& a) { a.b.shape[1] = 69; }, "b", "D=70", "[5,69]");
  bad.expect([](Args& a) { a.b.dtype = DType::kF16; }, "b", "F32 [T=5,D=70]", "F16");
  bad.expect([](Args& a) { a.y.dtype = DType::kBF16; }, "y", "F32 [T=5,D=70]", "BF16");
  bad.expect(
      [](Args& a) {
        a.a.shape[0] = a.b.shape[0] = a.y.shape[0] = 4;
        a.y.data = a.y.row(1);
      },
      "y", "memory of its own", "overlaps b");
  bad.expect_workspace_errors();
}

TEST(BadInput, Embedding) {
  using Args = EmbeddingArgs;
  BadInput<Args> bad("T9_V50_D512_Q4_K_toBF16");
  const Integers beyond({0, 49, 50, 1, 2, 3, 4, 5, 6});
  bad.expect([&](Args& a) { a.ids = beyond.view(); }, "ids", "from 0 to 49", "50");
  const Integers negative({0, 1, 2, 3, 4, 5, 6, 7, -1});
  bad.expect([&](Args& a) { a.ids = negative.view(); }, "ids", "from 0 to 49", "-1");
  bad.expect([](Args& a) { a.ids.dtype = DType::kF32; }, "ids", "I32 [T]", "F32 [9]");
  bad.expect([](Args& a) { a.table.dtype = DType::kI32; }, "table", "any dtype but I32", "I32");
  bad.expect([](Args& a) { a.table.shape[1] = a.y.shape[1] = 500; }, "table", "whole blocks of 256", "[50,500]");
  bad.expect([](Args& a) { a.table.strides[0] = 300; }, "table", "whole blocks of 256", "strides");
  bad.expect([](Args& a) { a.y.shape[1] = 256; }, "y", "D=512", "[9,256]");
  bad.expect([](Args& a) { a.y.dtype = DType::kQ8_0; }, "y", "F32, F16 or BF16", "Q8_0");
  bad.expect([](Args& a) { a.y.data = const_cast<void*>(a.table.data); }, "y", "memory of its own", "overlaps table");
  bad.expect_workspace_errors();
}

TEST(BadInput, Swiglu) {
  using Args = SwigluArgs;
  BadInput<Args> bad("T5_D70_F32_on_second");
  bad.expect([](Args& a) { a.gate.rank = 1; }, "gate", "[T,I]", "F32 [5]");
  bad.expect([](Args& a) { a.up.shape[1] = 69; }, "up", "I=70", "[5,69]");
  bad.expect([](Args& a) { a.up.dtype = DType::kF16; }, "up", "F32 [T=5,I=70]", "F16");
  bad.expect([](Args& a) { a.y.dtype = DType::kBF16; }, "y", "F32 [T=5,I=70]", "BF16");
  bad.expect([](Args& a) { a.y.strides[0] = 69; }, "y", "do not overlap", "strides");
  bad.expect(
      [](Args& a) {
        a.gate.shape[0] = a.up.shape[0] = a.y.shape[0] = 4;
        a.y.data = a.y.row(1);
      },
      "y", "memory of its own", "overlaps up");
  bad.expect_workspace_errors();
}

}  // namespace
}  // namespace thalweg
