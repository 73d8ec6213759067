// The models' mathematics in float64, token by token, written for reading.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "model/tiny_model.h"

namespace thalweg::model {
namespace {

using Row = std::vector<double>;
using Rows = std::vector<Row>;

double silu(double x) { return x / (1 + std::exp(-x)); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }
double softplus(double x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// Rows first..first+count of w times x.
Row times(const TinyTensor& w, const Row& x, std::size_t first, std::size_t count) {
  Row y(count);
  const float* weight = w.values.data() + first * x.size();
  for (std::size_t n = 0; n < count; ++n) {
    const double* const end = x.data() + x.size();
    for (const double* value = x.data(); value != end; ++value) y[n] += static_cast<double>(*weight++) * *value;
  }
  return y;
}
Row times(const TinyTensor& w, const Row& x) {
  // No columns where a shared expert of size 0 comes together.
  return x.empty() ? Row(static_cast<std::size_t>(w.shape[0])) : times(w, x, 0, w.values.size() / x.size());
}

Row part(const Row& x, std::size_t begin, std::size_t count) {
  return {x.begin() + static_cast<std::ptrdiff_t>(begin), x.begin() + static_cast<std::ptrdiff_t>(begin + count)};
}

// Zero-centered unless `plain`.
Row rms_norm(const Row& x, const TinyTensor& w, bool plain = false) {
  double sum = 0;
  for (double value : x) sum += value * value;
  const double factor = 1 / std::sqrt(sum / static_cast<double>(x.size()) + 1e-6);
  Row y(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    y[i] = x[i] * factor * ((plain ? 0 : 1) + static_cast<double>(w.values[i]));
  }
  return y;
}

Row l2norm(const Row& x) {
  double sum = 0;
  for (double value : x) sum += value * value;
  Row y = x;
  for (double& value : y) value /= std::sqrt(sum + 1e-6);
  return y;
}

Row rope(const Row& x, std::size_t position, std::size_t rotated) {
  Row y = x;
  for (std::size_t i = 0; i < rotated / 2; ++i) {
    const double angle =
        static_cast<double>(position) * std::pow(1e7, -2.0 * static_cast<double>(i) / static_cast<double>(rotated));
    const double a = x[i];
    const double b = x[i + rotated / 2];
    y[i] = a * std::cos(angle) - b * std::sin(angle);
    y[i + rotated / 2] = b * std::cos(angle) + a * std::sin(angle);
  }
  return y;
}

Row mlp(const Row& x, const TinyTensor& gate, const TinyTensor& up, const TinyTensor& down) {
  Row g = times(gate, x);
  const Row u = times(up, x);
  for (std::size_t i = 0; i < g.size(); ++i) g[i] = silu(g[i]) * u[i];
  return times(down, g);
}

class Oracle {
 public:
  Oracle(const TinySpec& spec, const std::string& prefix, const std::map<std::string, TinyTensor>& tensors)
      : s_(spec), prefix_(prefix), tensors_(tensors) {}

  Row embedding(std::int32_t token) const {
    const auto begin = at(prefix_ + "embed_tokens.weight").values.begin() + token * s_.hidden;
    return {begin, begin + s_.hidden};
  }

  // Behind the final norm, after each token.
  Rows hidden(const std::vector<std::int32_t>& tokens) const {
    Rows h;
    for (std::int32_t token : tokens) h.push_back(embedding(token));
    for (int i = 0; i < s_.layers; ++i) {
      run_layer(prefix_ + "layers." + std::to_string(i) + ".", s_.full_attention(i), s_.sparse(i), h);
    }
    for (Row& row : h) row = rms_norm(row, at(prefix_ + "norm.weight"));
    return h;
  }

  // Behind its norm, from each token and the hidden state at the one before.
  Rows mtp(const std::vector<std::int32_t>& tokens, const Rows& before) const {
    Rows h;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      Row both = rms_norm(embedding(tokens[t]), at("mtp.pre_fc_norm_embedding.weight"));
      const Row normed = rms_norm(before[t], at("mtp.pre_fc_norm_hidden.weight"));
      both.insert(both.end(), normed.begin(), normed.end());
      h.push_back(times(at("mtp.fc.weight"), both));
    }
    run_layer("mtp.layers.0.", true, s_.sparse(s_.layers), h);
    for (Row& row : h) row = rms_norm(row, at("mtp.norm.weight"));
    return h;
  }

  Row logits(const Row& hidden) const {
    return times(at(s_.tied ? prefix_ + "embed_tokens.weight" : "lm_head.weight"), hidden);
  }

 private:
  const TinyTensor& at(const std::string& name) const { return tensors_.at(name); }

  void run_layer(const std::string& layer, bool full_attention, bool sparse, Rows& h) const {
    const auto add_all = [&](const Rows& more) {
      for (std::size_t t = 0; t < h.size(); ++t) {
        for (std::size_t i = 0; i < h[t].size(); ++i) h[t][i] += more[t][i];
      }
    };
    Rows x;
    for (const Row& row : h) x.push_back(rms_norm(row, at(layer + "input_layernorm.weight")));
    add_all(full_attention ? attention(layer + "self_attn.", x) : delta_layer(layer + "linear_attn.", x));
    Rows y;
    for (const Row& row : h) {
      const Row normed = rms_norm(row, at(layer + "post_attention_layernorm.weight"));
      const std::string name = layer + "mlp.";
      y.push_back(sparse ? experts(name, normed)
                         : mlp(normed, at(name + "gate_proj.weight"), at(name + "up_proj.weight"),
                               at(name + "down_proj.weight")));
    }
    add_all(y);
  }

  Rows delta_layer(const std::string& name, const Rows& x) const {
    const std::size_t steps = x.size();
    const auto key_heads = static_cast<std::size_t>(s_.key_heads);
    const auto value_heads = static_cast<std::size_t>(s_.value_heads);
    const auto dk = static_cast<std::size_t>(s_.key_dim);
    const auto dv = static_cast<std::size_t>(s_.value_dim);
    const std::size_t ratio = value_heads / key_heads;
    const std::size_t keys = key_heads * dk;
    const std::size_t inner = value_heads * dv;
    const auto taps = static_cast<std::size_t>(s_.conv_width);
    Rows qkv(steps), z(steps), b(steps), a(steps), out(steps);
    for (std::size_t t = 0; t < steps; ++t) {
      if (s_.architecture != "qwen3next") {
        qkv[t] = times(at(name + "in_proj_qkv.weight"), x[t]);
        z[t] = times(at(name + "in_proj_z.weight"), x[t]);
        b[t] = times(at(name + "in_proj_b.weight"), x[t]);
        a[t] = times(at(name + "in_proj_a.weight"), x[t]);
        continue;
      }
      const Row all = times(at(name + "in_proj_qkvz.weight"), x[t]);
      const Row gates = times(at(name + "in_proj_ba.weight"), x[t]);
      const std::size_t block = 2 * dk + 2 * ratio * dv;
      qkv[t].resize(2 * keys + inner);
      for (std::size_t head = 0; head < key_heads; ++head) {
        const double* from = all.data() + head * block;
        std::copy(from, from + dk, qkv[t].begin() + static_cast<std::ptrdiff_t>(head * dk));
        std::copy(from + dk, from + 2 * dk, qkv[t].begin() + static_cast<std::ptrdiff_t>(keys + head * dk));
        std::copy(from + 2 * dk, from + 2 * dk + ratio * dv,
                  qkv[t].begin() + static_cast<std::ptrdiff_t>(2 * keys + head * ratio * dv));
        z[t].insert(z[t].end(), from + 2 * dk + ratio * dv, from + block);
        const double* gate = gates.data() + head * 2 * ratio;
        b[t].insert(b[t].end(), gate, gate + ratio);
        a[t].insert(a[t].end(), gate + ratio, gate + 2 * ratio);
      }
    }
    const std::vector<float>& conv = at(name + "conv1d.weight").values;
    Rows mixed(steps, Row(2 * keys + inner));
    for (std::size_t t = 0; t < steps; ++t) {
      for (std::size_t c = 0; c < mixed[t].size(); ++c) {
        for (std::size_t j = 0; j < taps; ++j) {
          if (t + j + 1 >= taps) mixed[t][c] += static_cast<double>(conv[c * taps + j]) * qkv[t + j + 1 - taps][c];
        }
        mixed[t][c] = silu(mixed[t][c]);
      }
    }
    std::vector<Rows> state(value_heads, Rows(dk, Row(dv)));
    for (std::size_t t = 0; t < steps; ++t) {
      Row gathered;
      for (std::size_t head = 0; head < value_heads; ++head) {
        Row q = l2norm(part(mixed[t], head / ratio * dk, dk));
        for (double& value : q) value /= std::sqrt(static_cast<double>(dk));
        const Row k = l2norm(part(mixed[t], keys + head / ratio * dk, dk));
        const Row v = part(mixed[t], 2 * keys + head * dv, dv);
        const double decay = std::exp(-std::exp(static_cast<double>(at(name + "A_log").values[head])) *
                                      softplus(a[t][head] + static_cast<double>(at(name + "dt_bias").values[head])));
        const double beta = sigmoid(b[t][head]);
        Rows& memory = state[head];
        Row recalled(dv);
        for (std::size_t i = 0; i < dk; ++i) {
          for (std::size_t j = 0; j < dv; ++j) {
            memory[i][j] *= decay;
            recalled[j] += memory[i][j] * k[i];
          }
        }
        Row o(dv);
        for (std::size_t i = 0; i < dk; ++i) {
          for (std::size_t j = 0; j < dv; ++j) {
            memory[i][j] += k[i] * beta * (v[j] - recalled[j]);
            o[j] += memory[i][j] * q[i];
          }
        }
        o = rms_norm(o, at(name + "norm.weight"), true);
        for (std::size_t j = 0; j < dv; ++j) gathered.push_back(o[j] * silu(z[t][head * dv + j]));
      }
      out[t] = times(at(name + "out_proj.weight"), gathered);
    }
    return out;
  }

  Rows attention(const std::string& name, const Rows& x) const {
    const std::size_t steps = x.size();
    const auto heads = static_cast<std::size_t>(s_.heads);
    const auto group = static_cast<std::size_t>(s_.heads / s_.kv_heads);
    const auto width = static_cast<std::size_t>(s_.head_dim);
    std::vector<Rows> keys(steps), values(steps);
    Rows out(steps);
    for (std::size_t t = 0; t < steps; ++t) {
      const Row q_and_gate = times(at(name + "q_proj.weight"), x[t]);
      const Row k = times(at(name + "k_proj.weight"), x[t]);
      const Row v = times(at(name + "v_proj.weight"), x[t]);
      for (std::size_t g = 0; g < heads / group; ++g) {
        keys[t].push_back(rope(rms_norm(part(k, g * width, width), at(name + "k_norm.weight")), t, width / 4));
        values[t].push_back(part(v, g * width, width));
      }
      Row gathered;
      for (std::size_t head = 0; head < heads; ++head) {
        const Row q =
            rope(rms_norm(part(q_and_gate, 2 * head * width, width), at(name + "q_norm.weight")), t, width / 4);
        Row scores(t + 1);
        for (std::size_t past = 0; past <= t; ++past) {
          const Row& key = keys[past][head / group];
          scores[past] =
              std::inner_product(q.begin(), q.end(), key.begin(), 0.0) / std::sqrt(static_cast<double>(width));
        }
        const double largest = *std::max_element(scores.begin(), scores.end());
        double total = 0;
        for (double& score : scores) total += score = std::exp(score - largest);
        for (std::size_t j = 0; j < width; ++j) {
          double sum = 0;
          for (std::size_t past = 0; past <= t; ++past) sum += scores[past] * values[past][head / group][j];
          gathered.push_back(sum / total * sigmoid(q_and_gate[(2 * head + 1) * width + j]));
        }
      }
      out[t] = times(at(name + "o_proj.weight"), gathered);
    }
    return out;
  }

  Row experts(const std::string& name, const Row& x) const {
    const auto d = static_cast<std::size_t>(s_.hidden);
    Row p = times(at(name + "gate.weight"), x);
    const double largest = *std::max_element(p.begin(), p.end());
    double total = 0;
    for (double& value : p) total += value = std::exp(value - largest);
    for (double& value : p) value /= total;
    std::vector<std::size_t> order(p.size());
    std::iota(order.begin(), order.end(), 0U);
    std::stable_sort(order.begin(), order.end(), [&](std::size_t i, std::size_t j) { return p[i] > p[j]; });
    order.resize(static_cast<std::size_t>(s_.experts_used));
    double chosen = 0;
    for (std::size_t e : order) chosen += p[e];
    Row y(d);
    const auto wide = static_cast<std::size_t>(s_.expert_hidden);
    for (std::size_t e : order) {
      Row gate = times(at(name + "experts.gate_up_proj"), x, 2 * e * wide, wide);
      const Row up = times(at(name + "experts.gate_up_proj"), x, (2 * e + 1) * wide, wide);
      for (std::size_t i = 0; i < wide; ++i) gate[i] = silu(gate[i]) * up[i];
      const Row down = times(at(name + "experts.down_proj"), gate, e * d, d);
      for (std::size_t i = 0; i < d; ++i) y[i] += down[i] * p[e] / (s_.renormalize ? chosen : 1);
    }
    const std::string shared = name + "shared_expert.";
    const Row more =
        mlp(x, at(shared + "gate_proj.weight"), at(shared + "up_proj.weight"), at(shared + "down_proj.weight"));
    const double gate = sigmoid(times(at(name + "shared_expert_gate.weight"), x)[0]);
    for (std::size_t i = 0; i < d; ++i) y[i] += gate * more[i];
    return y;
  }

  const TinySpec& s_;
  const std::string& prefix_;
  const std::map<std::string, TinyTensor>& tensors_;
};

}  // namespace

std::vector<std::vector<double>> TinyModel::logits(const std::vector<std::int32_t>& tokens) const {
  const Oracle oracle(spec_, prefix_, tensors_);
  Rows rows = oracle.hidden(tokens);
  for (Row& row : rows) row = oracle.logits(row);
  return rows;
}

std::vector<std::vector<double>> TinyModel::draft_logits(const std::vector<std::int32_t>& tokens,
                                                         const std::vector<std::int32_t>& drafts) const {
  const Oracle oracle(spec_, prefix_, tensors_);
  std::vector<std::int32_t> text(tokens.begin() + 1, tokens.end());
  Rows before = oracle.hidden({tokens.begin(), tokens.end() - 1});
  Rows rows;
  for (std::size_t n = 0;; ++n) {
    const Row last = oracle.mtp(text, before).back();
    rows.push_back(oracle.logits(last));
    if (n == drafts.size()) return rows;
    text.push_back(drafts[n]);
    before.push_back(last);
  }
}

}  // namespace thalweg::model
