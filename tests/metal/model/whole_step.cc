// A whole step at the shapes of Qwen3.5-35B-A3B, by operation: formulas of the products against the executor's counts
// on small shapes; everything else executed at its own size.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "metal/counted.h"
#include "metal/peers.h"
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
        if (tokens < 33) {
          EXPECT_EQ(traffic_of(args, kFew), product.rows());
        }
        if (k <= 1024) {
          EXPECT_EQ(traffic_of(args, kMany), product.tiles());
        }
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

// ---------------------------------------------------------------------------------------------------------------------
// Qwen3.5-35B-A3B: bf16 activations, keys and values in f16, states in f32, weights in Q4_K, the router's in F32.

constexpr peers::Step kDecode{.tokens = 1,
                              .context = 4096,
                              .d = 2048,
                              .key_heads = 16,
                              .value_heads = 32,
                              .width = 128,
                              .taps = 4,
                              .heads = 16,
                              .kv_heads = 2,
                              .head = 256,
                              .experts = 256,
                              .slots = 8,
                              .inner = 512,
                              .shared = 512,
                              .vocabulary = 248320,
                              .delta_layers = 30,
                              .attention_layers = 10};

constexpr peers::Step prompt_of(Count tokens) {
  peers::Step step = kDecode;
  step.tokens = step.context = tokens;
  return step;
}

class Qwen35B : public WholeStep {
 protected:
  // Runs of `part` tokens stand for those of all where traffic is in proportion to tokens.
  static constexpr Count kPart = 64;

  Traffic norms(const peers::Step& s) {
    const Count tokens = std::min(s.tokens, kPart);
    RmsNormArgs args;
    args.x = args.sum = tensor(DType::kBF16, {tokens, s.d});
    args.delta = tensor(DType::kBF16, {tokens, s.d});
    args.weight = tensor(DType::kF32, {s.d});
    args.y = tensor(DType::kBF16, {tokens, s.d});
    return 2 * s.layers() * of_all(s, traffic_of(args, kFew));
  }

  static Traffic projections(const peers::Step& s) {
    const auto product = [&](Count n, Count k, Count output) {
      const Product of{DType::kQ4_K, s.tokens, n, k, 2, output};
      return s.tokens == 1 ? of.rows() : of.tiles();
    };
    const Count gate = s.heads * s.head;
    const Traffic delta = product(s.channels(), s.d, 2) + product(s.values(), s.d, 2) +
                          2 * product(s.value_heads, s.d, 4) + product(s.d, s.values(), 2);
    const Traffic attention =
        product(2 * gate, s.d, 2) + 2 * product(s.kv_heads * s.head, s.d, 2) + product(s.d, gate, 2);
    return s.delta_layers * delta + s.attention_layers * attention;
  }

  GateInputs gates(const peers::Step& s, Count tokens) {
    return {tensor(DType::kF32, {1, tokens, s.value_heads}), tensor(DType::kF32, {1, tokens, s.value_heads}),
            tensor(DType::kF32, {s.value_heads}), tensor(DType::kF32, {s.value_heads})};
  }

  Traffic delta_step(const peers::Step& s) {
    GatedDeltaPrepStepArgs args;
    args.x = tensor(DType::kBF16, {1, 1, s.channels()});
    args.conv_weight = tensor(DType::kF32, {s.channels(), s.taps});
    args.conv_state = tensor(DType::kF32, {1, s.channels(), s.taps - 1});
    args.gates = gates(s, 1);
    args.state_in = args.state_out = tensor(DType::kF32, {1, s.value_heads, s.width, s.width});
    args.state_indices = integers({0});
    args.z = tensor(DType::kBF16, {1, 1, s.value_heads, s.width});
    args.norm_weight = tensor(DType::kF32, {s.width});
    args.y = tensor(DType::kBF16, {1, 1, s.value_heads, s.width});
    args.head_map = HeadMap::kTiled;
    args.qk_norm = QkNorm::kL2;
    return s.delta_layers * traffic_of(args, kFew);
  }

  Traffic delta_prompt(const peers::Step& s) {
    const Tensor bounds = integers({0, kPart});
    const Tensor slots = integers({0});
    CausalConv1dArgs conv;
    conv.x = tensor(DType::kBF16, {1, kPart, s.channels()});
    conv.weight = tensor(DType::kF32, {s.channels(), s.taps});
    conv.initial_state = conv.final_state = tensor(DType::kF32, {1, s.channels(), s.taps - 1});
    conv.state_indices = slots;
    conv.cu_seqlens = bounds;
    conv.y = tensor(DType::kBF16, {1, kPart, s.channels()});
    conv.activation = Activation::kSilu;
    ChunkGatedDeltaRuleArgs rule;
    rule.q = tensor(DType::kBF16, {1, kPart, s.key_heads, s.width});
    rule.k = tensor(DType::kBF16, {1, kPart, s.key_heads, s.width});
    rule.v = tensor(DType::kBF16, {1, kPart, s.value_heads, s.width});
    rule.gates = gates(s, kPart);
    rule.initial_state = rule.final_state = tensor(DType::kF32, {1, s.value_heads, s.width, s.width});
    rule.state_indices = slots;
    rule.cu_seqlens = bounds;
    rule.o = tensor(DType::kBF16, {1, kPart, s.value_heads, s.width});
    rule.head_map = HeadMap::kTiled;
    rule.qk_norm = QkNorm::kL2;
    GatedRmsNormArgs norm;
    norm.x = norm.y = tensor(DType::kBF16, {kPart, s.value_heads, s.width});
    norm.z = tensor(DType::kBF16, {kPart, s.value_heads, s.width});
    norm.weight = tensor(DType::kF32, {s.width});
    const Traffic part = traffic_of(conv, kMany) + traffic_of(rule, kMany) + traffic_of(norm, kMany);
    return s.delta_layers * of_all(s, part);
  }

  static Traffic of_all(const peers::Step& s, const Traffic& part) {
    const Count parts = s.tokens / std::min(s.tokens, kPart);
    return {part.launches, part.read * parts, part.written * parts};
  }

  // Norms and rotations of q and k, and the caches.
  Traffic heads(const peers::Step& s) {
    const Count tokens = std::min(s.tokens, kPart);
    const Tensor k = tensor(DType::kBF16, {tokens, s.kv_heads, s.head});
    const Tensor q = narrow(tensor(DType::kBF16, {tokens, s.heads, 2 * s.head}), 2, 0, s.head);
    Traffic all;
    for (const Tensor& rotated : {q, k}) {
      RopeArgs rope;
      rope.x = rope.y = rotated;
      rope.positions = tensor(DType::kI32, {tokens});
      rope.frequencies = tensor(DType::kF32, {s.head / 8});
      rope.norm_weight = tensor(DType::kF32, {s.head});
      rope.rotary_dim = static_cast<int>(s.head / 4);
      all = all + traffic_of(rope, kFew);
    }
    StoreKvArgs store;
    store.k = store.v = k;
    store.cu_seqlens = integers({0, static_cast<std::int32_t>(tokens)});
    store.lengths = integers({static_cast<std::int32_t>(tokens)});
    store.slots = integers({0});
    store.k_cache = tensor(DType::kF16, {1, tokens, s.kv_heads, s.head});
    store.v_cache = tensor(DType::kF16, {1, tokens, s.kv_heads, s.head});
    return of_all(s, all + traffic_of(store, kFew));
  }

  // One key head with its queries stands for all.
  Traffic attention(const peers::Step& s) {
    const Count queries = s.heads / s.kv_heads;
    const Tensor q_and_gate = tensor(DType::kBF16, {s.tokens, queries, 2 * s.head});
    AttentionArgs args;
    args.q = narrow(q_and_gate, 2, 0, s.head);
    args.gate = narrow(q_and_gate, 2, s.head, s.head);
    args.k_cache = tensor(DType::kF16, {1, s.context, 1, s.head});
    args.v_cache = tensor(DType::kF16, {1, s.context, 1, s.head});
    args.cu_seqlens = integers({0, static_cast<std::int32_t>(s.tokens)});
    args.lengths = integers({static_cast<std::int32_t>(s.context)});
    args.slots = integers({0});
    args.o = tensor(DType::kBF16, {s.tokens, queries, s.head});
    const Traffic one = traffic_of(args, s.tokens == 1 ? kFew : kMany);
    const Traffic all{one.launches, s.kv_heads * one.read, s.kv_heads * one.written};
    return s.attention_layers * (heads(s) + all);
  }

  // Of the last token's logits.
  Traffic ends(const peers::Step& s) {
    const Count tokens = std::min(s.tokens, kPart);
    EmbeddingArgs embedding;
    embedding.ids = tensor(DType::kI32, {tokens});
    embedding.table = tensor(DType::kQ4_K, {2, s.d});
    embedding.y = tensor(DType::kBF16, {tokens, s.d});
    RmsNormArgs norm;
    norm.x = tensor(DType::kBF16, {tokens, s.d});
    norm.delta = tensor(DType::kBF16, {tokens, s.d});
    norm.weight = tensor(DType::kF32, {s.d});
    norm.y = tensor(DType::kBF16, {tokens, s.d});
    return of_all(s, traffic_of(embedding, kFew) + traffic_of(norm, kFew)) +
           Product{DType::kQ4_K, 1, s.vocabulary, s.d, 2, 4}.rows();
  }

  peers::Steps ours(const peers::Step& s) {
    const Experts block{s.tokens, s.d, s.slots, s.experts, s.inner, s.shared, s.expert_tiles(32)};
    const bool one = s.tokens == 1;
    const auto product = [&](const Product& of) { return one ? of.rows() : of.tiles(); };
    peers::Steps steps;
    steps.norms = norms(s);
    steps.projections = projections(s);
    steps.delta = one ? delta_step(s) : delta_prompt(s);
    steps.attention = attention(s);
    steps.router = s.layers() * (product(block.router()) + block.choice());
    steps.gate_up =
        s.layers() * (product(block.shared_gate_up()) +
                      (one ? block.gate_up_vectors() : block.lists() + block.product_tiles(s.inner, s.d, 2, true)));
    steps.down =
        s.layers() * (product(block.shared_down()) + product(block.shared_router()) +
                      (one ? block.down_vectors() : block.product_tiles(s.d, s.inner, 4, false) + block.combine()));
    steps.ends = ends(s);
    return steps;
  }

  // Prints the table, and expects no more launches and bytes than of the better peer, but in `above`.
  void compare(const peers::Step& s, const std::vector<std::string>& above) {
    const peers::Steps steps[] = {ours(s), peers::mlx(s), peers::llama(s)};
    const auto row = [&](const std::string& name, const Traffic& a, const Traffic& b, const Traffic& c) {
      std::printf("| %s | %lld | %lld | %lld | %.2f | %.2f | %.2f |\n", name.c_str(),
                  static_cast<long long>(a.launches), static_cast<long long>(b.launches),
                  static_cast<long long>(c.launches), static_cast<double>(a.bytes()) * 1e-6,
                  static_cast<double>(b.bytes()) * 1e-6, static_cast<double>(c.bytes()) * 1e-6);
      const bool is_above = std::find(above.begin(), above.end(), name) != above.end();
      EXPECT_LE(a.launches, std::min(b.launches, c.launches)) << name;
      EXPECT_EQ(a.bytes() > std::min(b.bytes(), c.bytes()), is_above) << name;
    };
    const auto rows = [&](const std::string& name, auto member) {
      row(name, steps[0].*member, steps[1].*member, steps[2].*member);
    };
    rows("norms, residual sums", &peers::Steps::norms);
    rows("projections", &peers::Steps::projections);
    rows("gated delta layers", &peers::Steps::delta);
    rows("attention", &peers::Steps::attention);
    rows("router, choice", &peers::Steps::router);
    rows("experts: gate, up", &peers::Steps::gate_up);
    rows("experts: down, sums", &peers::Steps::down);
    rows("embedding, last norm, head", &peers::Steps::ends);
    row("**all**", steps[0].all(), steps[1].all(), steps[2].all());
  }
};

// The router's weights are F32 in the files; MLX rounds them to 8 bits.
TEST_F(Qwen35B, ADecodeStepAtAContextOf4096) { compare(kDecode, {"router, choice"}); }

TEST_F(Qwen35B, APromptOf512Tokens) { compare(prompt_of(512), {"router, choice"}); }

// The peers' tiles for the matrix units of M5 are larger; we have none for them.
TEST_F(Qwen35B, ProjectionsOfAPromptReadLessByThePeersOnM5) {
  const peers::Step s = prompt_of(512);
  const Count weights = s.delta_layers * s.delta_weights() + s.attention_layers * s.attention_weights();
  const Count given = projections(s).read;
  const Count mlx = peers::MlxProducts{s.tokens, 64}.read(weights);
  const Count llama = peers::LlamaProducts{s.tokens, 128}.read(weights);
  std::printf("| projections, loads, M5 | %.2f | %.2f | %.2f |\n", static_cast<double>(given) * 1e-6,
              static_cast<double>(mlx) * 1e-6, static_cast<double>(llama) * 1e-6);
  EXPECT_GT(given, llama);
  EXPECT_GT(llama, mlx);
}

}  // namespace
}  // namespace thalweg::metal
