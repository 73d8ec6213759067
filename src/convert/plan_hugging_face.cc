#include <numeric>

#include "convert/tensor_plan.h"

namespace thalweg::convert {
namespace {

using Rows = std::vector<std::int64_t>;

Rows range(std::int64_t first, std::int64_t count) {
  Rows rows(static_cast<std::size_t>(count));
  std::iota(rows.begin(), rows.end(), first);
  return rows;
}

// Builds the plans of one model.
class Planner {
 public:
  Planner(const ModelConfig& config, std::string prefix, const TensorLookup& lookup)
      : c_(config), prefix_(std::move(prefix)), lookup_(lookup) {}

  std::vector<TensorPlan> plan(const std::string& mtp_prefix) {
    add("token_embd.weight", prefix_ + "embed_tokens.weight", {c_.vocabulary, c_.hidden});
    norm("output_norm.weight", prefix_ + "norm.weight", c_.hidden);
    if (!c_.tied_head) add("output.weight", "lm_head.weight", {c_.vocabulary, c_.hidden});
    for (std::size_t i = 0; i < c_.layers.size(); ++i) {
      to_ = "blk." + std::to_string(i) + ".";
      from_ = prefix_ + "layers." + std::to_string(i) + ".";
      norm(to_ + "attn_norm.weight", from_ + "input_layernorm.weight", c_.hidden);
      norm(to_ + "post_attention_norm.weight", from_ + "post_attention_layernorm.weight", c_.hidden);
      if (c_.layers[i] == LayerKind::kGatedDelta) {
        gated_delta();
      } else {
        attention();
      }
      if (c_.sparse[i]) {
        experts();
      } else {
        dense("ffn_", "", "mlp.", c_.dense_hidden);
      }
    }
    if (c_.has_mtp) mtp(mtp_prefix);
    return std::move(plans_);
  }

 private:
  TensorPlan& add(const std::string& name, const std::string& source, const std::vector<std::int64_t>& shape) {
    return add(name, source, shape, shape);
  }

  // With `source_shape` where the plan takes only some of the source's rows.
  TensorPlan& add(const std::string& name, const std::string& source, std::vector<std::int64_t> shape,
                  const std::vector<std::int64_t>& source_shape) {
    TensorPlan plan;
    plan.name = name;
    plan.shape = std::move(shape);
    plan.source = source;
    plan.sources.push_back(lookup_.find(source, source_shape));
    plans_.push_back(std::move(plan));
    return plans_.back();
  }

  void norm(const std::string& name, const std::string& source, std::int64_t size) {
    add(name, source, {size}).change = TensorPlan::Change::kPlusOne;
  }

  bool tiled() const { return c_.architecture != "qwen3next" && c_.value_heads != c_.key_heads; }

  // Value heads of `width` rows each, from row `first` on: grouped by key head in the source, tiled over the key heads
  // in the new file, the order of a broadcast.
  void append_value_heads(Rows& rows, std::int64_t first, std::int64_t width) const {
    const std::int64_t each = c_.value_heads / c_.key_heads;
    for (std::int64_t h = 0; h < c_.value_heads; ++h) {
      const std::int64_t from = tiled() ? h % c_.key_heads * each + h / c_.key_heads : h;
      for (std::int64_t i = 0; i < width; ++i) rows.push_back(first + from * width + i);
    }
  }

  Rows value_heads(std::int64_t width) const {
    Rows rows;
    if (tiled()) append_value_heads(rows, 0, width);
    return rows;
  }

  // Rows or channels q | k | v.
  Rows qkv() const {
    if (!tiled()) return {};
    Rows rows = range(0, 2 * c_.key_channels());
    append_value_heads(rows, 2 * c_.key_channels(), c_.value_dim);
    return rows;
  }

  // Qwen3-Next interleaves q, k, v and z by key head.
  void split_qkvz() {
    const std::int64_t key = c_.key_dim;
    const std::int64_t value = std::int64_t{c_.value_heads} / c_.key_heads * c_.value_dim;
    const std::int64_t head = 2 * key + 2 * value;
    Rows rows[4];  // q, k, v, z
    for (std::int64_t h = 0; h < c_.key_heads; ++h) {
      const std::int64_t starts[] = {0, key, 2 * key, 2 * key + value};
      const std::int64_t sizes[] = {key, key, value, value};
      for (int i = 0; i < 4; ++i) {
        for (std::int64_t row = 0; row < sizes[i]; ++row) rows[i].push_back(h * head + starts[i] + row);
      }
    }
    rows[0].insert(rows[0].end(), rows[1].begin(), rows[1].end());
    rows[0].insert(rows[0].end(), rows[2].begin(), rows[2].end());
    const std::string source = from_ + "linear_attn.in_proj_qkvz.weight";
    const std::vector<std::int64_t> whole = {c_.key_heads * head, c_.hidden};
    add(to_ + "attn_qkv.weight", source, {c_.conv_channels(), c_.hidden}, whole).rows = std::move(rows[0]);
    add(to_ + "attn_gate.weight", source, {c_.value_channels(), c_.hidden}, whole).rows = std::move(rows[3]);
  }

  void gated_delta() {
    const std::string from = from_ + "linear_attn.";
    const std::int64_t heads = c_.value_heads;
    if (c_.architecture == "qwen3next") {
      split_qkvz();
      add(to_ + "ssm_ba.weight", from + "in_proj_ba.weight", {2 * heads, c_.hidden});
    } else {
      add(to_ + "attn_qkv.weight", from + "in_proj_qkv.weight", {c_.conv_channels(), c_.hidden}).rows = qkv();
      add(to_ + "attn_gate.weight", from + "in_proj_z.weight", {c_.value_channels(), c_.hidden}).rows =
          value_heads(c_.value_dim);
      add(to_ + "ssm_beta.weight", from + "in_proj_b.weight", {heads, c_.hidden}).rows = value_heads(1);
      add(to_ + "ssm_alpha.weight", from + "in_proj_a.weight", {heads, c_.hidden}).rows = value_heads(1);
    }
    add(to_ + "ssm_conv1d.weight", from + "conv1d.weight", {c_.conv_channels(), c_.conv_width}).rows = qkv();
    add(to_ + "ssm_dt.bias", from + "dt_bias", {heads}).columns = value_heads(1);
    TensorPlan& decay = add(to_ + "ssm_a", from + "A_log", {heads});
    decay.columns = value_heads(1);
    decay.change = TensorPlan::Change::kMinusExp;
    add(to_ + "ssm_norm.weight", from + "norm.weight", {c_.value_dim});  // the gated norm stores w, not w of 1 + w
    add(to_ + "ssm_out.weight", from + "out_proj.weight", {c_.hidden, c_.value_channels()}).columns =
        value_heads(c_.value_dim);
  }

  void attention() {
    const std::string from = from_ + "self_attn.";
    const std::int64_t inner = std::int64_t{c_.heads} * c_.head_dim;
    const std::int64_t keys = std::int64_t{c_.kv_heads} * c_.head_dim;
    add(to_ + "attn_q.weight", from + "q_proj.weight", {2 * inner, c_.hidden});
    add(to_ + "attn_k.weight", from + "k_proj.weight", {keys, c_.hidden});
    add(to_ + "attn_v.weight", from + "v_proj.weight", {keys, c_.hidden});
    add(to_ + "attn_output.weight", from + "o_proj.weight", {c_.hidden, inner});
    norm(to_ + "attn_q_norm.weight", from + "q_norm.weight", c_.head_dim);
    norm(to_ + "attn_k_norm.weight", from + "k_norm.weight", c_.head_dim);
  }

  void mtp(const std::string& prefix) {
    to_ = "blk." + std::to_string(c_.layers.size()) + ".";
    from_ = prefix + "layers.0.";
    norm(to_ + "attn_norm.weight", from_ + "input_layernorm.weight", c_.hidden);
    norm(to_ + "post_attention_norm.weight", from_ + "post_attention_layernorm.weight", c_.hidden);
    attention();
    if (c_.mtp_sparse) {
      experts();
    } else {
      dense("ffn_", "", "mlp.", c_.dense_hidden);
    }
    const std::string own = to_ + "nextn.";
    add(own + "eh_proj.weight", prefix + "fc.weight", {c_.hidden, 2 * c_.hidden});
    norm(own + "enorm.weight", prefix + "pre_fc_norm_embedding.weight", c_.hidden);
    norm(own + "hnorm.weight", prefix + "pre_fc_norm_hidden.weight", c_.hidden);
    norm(own + "shared_head_norm.weight", prefix + "norm.weight", c_.hidden);
    const auto vocabulary_matrix = [&](const std::string& name, const std::string& source) {
      if (lookup_.has(source)) add(own + name, source, {c_.vocabulary, c_.hidden});
    };
    vocabulary_matrix("embed_tokens.weight", prefix + "embed_tokens.weight");
    vocabulary_matrix("shared_head_head.weight", prefix + "shared_head.head.weight");
  }

  void dense(const std::string& name, const std::string& suffix, const std::string& source, std::int64_t wide) {
    add(to_ + name + "gate" + suffix + ".weight", from_ + source + "gate_proj.weight", {wide, c_.hidden});
    add(to_ + name + "up" + suffix + ".weight", from_ + source + "up_proj.weight", {wide, c_.hidden});
    add(to_ + name + "down" + suffix + ".weight", from_ + source + "down_proj.weight", {c_.hidden, wide});
  }

  void stack(const std::string& name, const std::string& projection, std::int64_t rows, std::int64_t columns) {
    TensorPlan plan;
    plan.name = to_ + name;
    plan.shape = {c_.experts, rows, columns};
    for (int e = 0; e < c_.experts; ++e) {
      plan.source = from_ + "mlp.experts." + std::to_string(e) + "." + projection + ".weight";
      plan.sources.push_back(lookup_.find(plan.source, {rows, columns}));
    }
    plan.source = from_ + "mlp.experts.*." + projection + ".weight";
    plans_.push_back(std::move(plan));
  }

  void experts() {
    const std::int64_t wide = c_.expert_hidden;
    const std::string from = from_ + "mlp.";
    add(to_ + "ffn_gate_inp.weight", from + "gate.weight", {c_.experts, c_.hidden});
    if (lookup_.has(from + "experts.gate_up_proj")) {
      const std::vector<std::int64_t> both = {c_.experts, 2 * wide, c_.hidden};
      Rows halves[2];
      for (std::int64_t row = 0; row < c_.experts * 2 * wide; ++row) halves[row / wide % 2].push_back(row);
      const std::vector<std::int64_t> half = {c_.experts, wide, c_.hidden};
      add(to_ + "ffn_gate_exps.weight", from + "experts.gate_up_proj", half, both).rows = std::move(halves[0]);
      add(to_ + "ffn_up_exps.weight", from + "experts.gate_up_proj", half, both).rows = std::move(halves[1]);
      add(to_ + "ffn_down_exps.weight", from + "experts.down_proj", {c_.experts, c_.hidden, wide});
    } else {
      stack("ffn_gate_exps.weight", "gate_proj", wide, c_.hidden);
      stack("ffn_up_exps.weight", "up_proj", wide, c_.hidden);
      stack("ffn_down_exps.weight", "down_proj", c_.hidden, wide);
    }
    if (c_.shared_hidden == 0) return;
    add(to_ + "ffn_gate_inp_shexp.weight", from + "shared_expert_gate.weight", {c_.hidden});
    dense("ffn_", "_shexp", "mlp.shared_expert.", c_.shared_hidden);
  }

  const ModelConfig& c_;
  std::string prefix_;
  const TensorLookup& lookup_;
  std::string to_;    // "blk.3."
  std::string from_;  // "model.layers.3."
  std::vector<TensorPlan> plans_;
};

}  // namespace

std::vector<TensorPlan> plan_hugging_face(const ModelConfig& config, const std::string& prefix,
                                          const std::string& mtp_prefix, const TensorLookup& lookup) {
  return Planner(config, prefix, lookup).plan(mtp_prefix);
}

}  // namespace thalweg::convert
