#include "reference/gated_delta_rule.h"

#include <algorithm>
#include <cmath>

#include "core/sequences.h"

namespace thalweg::reference {
namespace {

std::int64_t key_head(const Rule& rule, std::int64_t h) {
  const std::int64_t hk = rule.k.dim(2);
  return rule.head_map == HeadMap::kTiled ? h % hk : h / (rule.v.dim(2) / hk);
}

struct Span {
  std::int64_t row, begin, length;
};

std::vector<Span> spans(const Rule& rule) {
  std::vector<Span> list;
  if (rule.bounds.empty()) {
    for (std::int64_t b = 0; b < rule.q.dim(0); ++b) list.push_back({b, 0, rule.q.dim(1)});
  }
  for (std::size_t n = 0; n + 1 < rule.bounds.size(); ++n) {
    list.push_back({0, rule.bounds[n], rule.bounds[n + 1] - rule.bounds[n]});
  }
  return list;
}

void normalize(Array& x, QkNorm norm, double eps, const Array& weight) {
  if (norm == QkNorm::kNone) return;
  const std::int64_t width = x.dim(3);
  for (std::int64_t row = 0; row < x.size() / width; ++row) {
    double* values = x.values.data() + row * width;
    double squares = 0.0;
    for (std::int64_t i = 0; i < width; ++i) squares += values[i] * values[i];
    const double mean = norm == QkNorm::kL2 ? squares : squares / static_cast<double>(width);
    for (std::int64_t i = 0; i < width; ++i) {
      values[i] /= std::sqrt(mean + eps);
      if (norm == QkNorm::kRms) values[i] *= weight(row % x.dim(2), i);
    }
  }
}

double softplus(double x) { return x > 20.0 ? x : std::log1p(std::exp(x)); }
double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

void compute_gates(const GateInputs& gates, Array& g, Array& beta) {
  const Array a = read(gates.a);
  const Array b = read(gates.b);
  const Array a_log = read(gates.a_log);
  const Array dt_bias = read(gates.dt_bias);
  g = Array(a.shape());
  beta = Array(a.shape());
  for (std::int64_t i = 0; i < a.size(); ++i) {
    const std::int64_t h = i % a.dim(2);
    const auto at = static_cast<std::size_t>(i);
    g.values[at] = -std::exp(a_log(h)) * softplus(a.values[at] + dt_bias(h));
    beta.values[at] = sigmoid(b.values[at]);
  }
}

// Pool [slots,HV,V,K] (or [..,K,V]) -> [N,HV,V,K]; zeros for -1 or an absent pool.
Array gather_states(const ConstTensor& pool, const ConstTensor& indices, StateLayout layout, std::int64_t sequences,
                    std::int64_t hv, std::int64_t v, std::int64_t k) {
  const Array from = read(pool);
  Array states({sequences, hv, v, k});
  for (std::int64_t n = 0; pool.defined() && n < sequences; ++n) {
    const std::int64_t slot = state_slot(indices, n);
    if (slot < 0) continue;
    for (std::int64_t h = 0; h < hv; ++h) {
      for (std::int64_t i = 0; i < v; ++i) {
        for (std::int64_t j = 0; j < k; ++j) {
          states(n, h, i, j) = layout == StateLayout::kVK ? from(slot, h, i, j) : from(slot, h, j, i);
        }
      }
    }
  }
  return states;
}

// The pool after the states have been written to it.
Array scatter_states(const Array& states, const ConstTensor& pool, const ConstTensor& indices, StateLayout layout,
                     Precision precision) {
  Array result = read(pool);
  for (std::int64_t n = 0; pool.defined() && n < states.dim(0); ++n) {
    const std::int64_t slot = state_slot(indices, n);
    if (slot < 0) continue;
    for (std::int64_t h = 0; h < states.dim(1); ++h) {
      for (std::int64_t i = 0; i < states.dim(2); ++i) {
        for (std::int64_t j = 0; j < states.dim(3); ++j) {
          const double value = rounded(pool.dtype, states(n, h, i, j), precision);
          (layout == StateLayout::kVK ? result(slot, h, i, j) : result(slot, h, j, i)) = value;
        }
      }
    }
  }
  return result;
}

Array lay_out_snapshots(const Array& snapshots, const Tensor& to, StateLayout layout, Precision precision) {
  if (!to.defined()) return {};
  Array result = snapshots;
  if (layout == StateLayout::kKV) {
    const std::int64_t v = snapshots.dim(3);
    const std::int64_t k = snapshots.dim(4);
    result = Array({snapshots.dim(0), snapshots.dim(1), snapshots.dim(2), k, v});
    for (std::int64_t at = 0; at < snapshots.size(); ++at) {
      const std::int64_t i = at / k % v;
      const std::int64_t j = at % k;
      result.values[static_cast<std::size_t>(at / (k * v) * (k * v) + j * v + i)] =
          snapshots.values[static_cast<std::size_t>(at)];
    }
  }
  round_all(result, to.dtype, precision);
  return result;
}

}  // namespace

RuleResult recurrence(const Rule& rule, bool snapshots, std::int64_t checkpoint_tokens) {
  const std::int64_t hv = rule.v.dim(2);
  const std::int64_t vs = rule.v.dim(3);
  const std::int64_t ks = rule.k.dim(3);
  RuleResult result{Array(rule.v.shape()), rule.initial_state, {}, {}};
  if (snapshots) result.snapshots = Array({rule.q.dim(0), rule.q.dim(1), hv, vs, ks});
  const auto checkpoints_of = [&](const Span& span) {
    return checkpoint_tokens > 0 ? (span.length + checkpoint_tokens - 1) / checkpoint_tokens : 0;
  };
  std::int64_t all_checkpoints = 0;
  for (const Span& span : spans(rule)) all_checkpoints += checkpoints_of(span);
  if (checkpoint_tokens > 0) result.checkpoints = Array({all_checkpoints, hv, vs, ks});
  std::int64_t n = -1;
  std::int64_t first_checkpoint = 0;
  for (const Span& span : spans(rule)) {
    ++n;
    for (std::int64_t h = 0; h < hv; ++h) {
      const std::int64_t kh = key_head(rule, h);
      for (std::int64_t t = span.begin; t < span.begin + span.length; ++t) {
        if (checkpoint_tokens > 0 && (t - span.begin) % checkpoint_tokens == 0) {
          const std::int64_t checkpoint = first_checkpoint + (t - span.begin) / checkpoint_tokens;
          std::copy_n(result.final_state.values.begin() + (n * hv + h) * vs * ks, vs * ks,
                      result.checkpoints.values.begin() + (checkpoint * hv + h) * vs * ks);
        }
        const double decay = std::exp(rule.g(span.row, t, h));
        for (std::int64_t i = 0; i < vs; ++i) {
          double memory = 0.0;
          for (std::int64_t j = 0; j < ks; ++j) {
            result.final_state(n, h, i, j) *= decay;
            memory += result.final_state(n, h, i, j) * rule.k(span.row, t, kh, j);
          }
          const double delta = rule.beta(span.row, t, h) * (rule.v(span.row, t, h, i) - memory);
          double out = 0.0;
          for (std::int64_t j = 0; j < ks; ++j) {
            result.final_state(n, h, i, j) += delta * rule.k(span.row, t, kh, j);
            out += result.final_state(n, h, i, j) * rule.q(span.row, t, kh, j);
            if (snapshots) result.snapshots(span.row, t, h, i, j) = result.final_state(n, h, i, j);
          }
          result.o(span.row, t, h, i) = rule.scale * out;
        }
      }
    }
    first_checkpoint += checkpoints_of(span);
  }
  return result;
}

RuleResult chunk_form(const Rule& rule, std::int64_t chunk_size) {
  const std::int64_t hv = rule.v.dim(2);
  const std::int64_t vs = rule.v.dim(3);
  const std::int64_t ks = rule.k.dim(3);
  RuleResult result{Array(rule.v.shape()), rule.initial_state, {}, {}};
  std::int64_t n = -1;
  for (const Span& span : spans(rule)) {
    ++n;
    for (std::int64_t h = 0; h < hv; ++h) {
      const std::int64_t kh = key_head(rule, h);
      for (std::int64_t at = 0; at < span.length; at += chunk_size) {
        const std::int64_t c = std::min(chunk_size, span.length - at);
        const std::int64_t t0 = span.begin + at;
        const auto dot = [&](const Array& x, std::int64_t i, std::int64_t j) {
          double sum = 0.0;
          for (std::int64_t d = 0; d < ks; ++d) sum += x(span.row, t0 + i, kh, d) * rule.k(span.row, t0 + j, kh, d);
          return sum;
        };
        std::vector<double> sums(static_cast<std::size_t>(c));
        double total = 0.0;
        for (std::int64_t i = 0; i < c; ++i) sums[static_cast<std::size_t>(i)] = total += rule.g(span.row, t0 + i, h);
        const auto decay = [&](std::int64_t i, std::int64_t j) {
          return std::exp(sums[static_cast<std::size_t>(i)] - sums[static_cast<std::size_t>(j)]);
        };
        const auto from_start = [&](std::int64_t i) { return std::exp(sums[static_cast<std::size_t>(i)]); };

        // Tm = (I + L)^-1, column by column.
        Array inverse({c, c});
        for (std::int64_t j = 0; j < c; ++j) {
          for (std::int64_t i = j; i < c; ++i) {
            double x = i == j ? 1.0 : 0.0;
            for (std::int64_t m = j; m < i; ++m) {
              x -= rule.beta(span.row, t0 + i, h) * dot(rule.k, i, m) * decay(i, m) * inverse(m, j);
            }
            inverse(i, j) = x;
          }
        }
        Array fresh({c, vs});  // V' = Tm (beta v) - Tm (beta k exp(G)) S
        for (std::int64_t i = 0; i < c; ++i) {
          for (std::int64_t m = 0; m <= i; ++m) {
            const double factor = inverse(i, m) * rule.beta(span.row, t0 + m, h);
            for (std::int64_t d = 0; d < vs; ++d) {
              double memory = 0.0;
              for (std::int64_t e = 0; e < ks; ++e)
                memory += result.final_state(n, h, d, e) * rule.k(span.row, t0 + m, kh, e);
              fresh(i, d) += factor * (rule.v(span.row, t0 + m, h, d) - from_start(m) * memory);
            }
          }
        }
        for (std::int64_t i = 0; i < c; ++i) {
          for (std::int64_t d = 0; d < vs; ++d) {
            double out = 0.0;
            for (std::int64_t e = 0; e < ks; ++e)
              out += rule.q(span.row, t0 + i, kh, e) * result.final_state(n, h, d, e);
            result.o(span.row, t0 + i, h, d) = rule.scale * from_start(i) * out;
          }
          for (std::int64_t m = 0; m <= i; ++m) {
            const double weight = rule.scale * dot(rule.q, i, m) * decay(i, m);
            for (std::int64_t d = 0; d < vs; ++d) result.o(span.row, t0 + i, h, d) += weight * fresh(m, d);
          }
        }
        for (std::int64_t d = 0; d < vs; ++d) {
          for (std::int64_t e = 0; e < ks; ++e) {
            double sum = from_start(c - 1) * result.final_state(n, h, d, e);
            for (std::int64_t i = 0; i < c; ++i) sum += fresh(i, d) * decay(c - 1, i) * rule.k(span.row, t0 + i, kh, e);
            result.final_state(n, h, d, e) = sum;
          }
        }
      }
    }
  }
  return result;
}

Rule read_rule(const GatedDeltaRuleArgs& args) {
  Rule rule;
  rule.q = read(args.q);
  rule.k = read(args.k);
  rule.v = read(args.v);
  rule.g = read(args.g);
  rule.beta = read(args.beta);
  if (args.gates.a.defined()) compute_gates(args.gates, rule.g, rule.beta);
  normalize(rule.q, args.qk_norm, args.qk_norm_eps, read(args.q_norm_weight));
  normalize(rule.k, args.qk_norm, args.qk_norm_eps, read(args.k_norm_weight));
  rule.scale = args.scale ? *args.scale : 1.0 / std::sqrt(static_cast<double>(rule.k.dim(3)));
  rule.head_map = args.head_map;
  for (const double bound : read(args.cu_seqlens).values) rule.bounds.push_back(static_cast<std::int64_t>(bound));
  const std::int64_t sequences =
      rule.bounds.empty() ? rule.q.dim(0) : static_cast<std::int64_t>(rule.bounds.size()) - 1;
  rule.initial_state = gather_states(args.initial_state, args.state_indices, args.state_layout, sequences,
                                     rule.v.dim(2), rule.v.dim(3), rule.k.dim(3));
  return rule;
}

GatedDeltaResult gated_delta_rule(const GatedDeltaRuleArgs& args, const Tensor& snapshots, Precision precision) {
  const Rule rule = read_rule(args);
  RuleResult result = recurrence(rule, snapshots.defined());
  round_all(result.o, args.o.dtype, precision);
  return {std::move(result.o),
          scatter_states(result.final_state, args.final_state, args.state_indices, args.state_layout, precision),
          lay_out_snapshots(result.snapshots, snapshots, args.state_layout, precision),
          {}};
}

Array checkpoints(const GatedDeltaRuleArgs& args, const Tensor& checkpoints, std::int64_t tokens, Precision precision) {
  const Array states = recurrence(read_rule(args), false, tokens).checkpoints;
  Array result({checkpoints.dim(0), checkpoints.dim(1), states.dim(1), states.dim(2), states.dim(3)});
  result.values = states.values;  // rows follow each other, and so do the sequences of one
  return lay_out_snapshots(result, checkpoints, args.state_layout, precision);
}

GatedDeltaResult gated_delta_prep_step(const GatedDeltaPrepStepArgs& args, Precision precision) {
  Array x = read(args.x);
  const std::int64_t batch = x.dim(0);
  const std::int64_t tokens = x.dim(1);
  const std::int64_t channels = x.dim(2);
  GatedDeltaResult out;
  if (args.conv_weight.defined()) {
    const Array weight = read(args.conv_weight);
    const std::int64_t taps = weight.dim(1);
    out.conv_state = read(args.conv_state);
    Array y(x.shape());
    for (std::int64_t b = 0; b < batch; ++b) {
      const std::int64_t slot = state_slot(args.state_indices, b);
      for (std::int64_t c = 0; c < channels; ++c) {
        std::vector<double> inputs(static_cast<std::size_t>(taps - 1), 0.0);
        for (std::int64_t j = 0; slot >= 0 && j < taps - 1; ++j)
          inputs[static_cast<std::size_t>(j)] = out.conv_state(slot, c, j);
        for (std::int64_t t = 0; t < tokens; ++t) {
          inputs.push_back(x(b, t, c));
          double sum = 0.0;
          for (std::int64_t j = 0; j < taps; ++j) sum += weight(c, j) * inputs[static_cast<std::size_t>(t + j)];
          y(b, t, c) = sum * sigmoid(sum);
        }
        for (std::int64_t j = 0; slot >= 0 && j < taps - 1; ++j) {
          out.conv_state(slot, c, j) =
              rounded(args.conv_state.dtype, inputs[static_cast<std::size_t>(tokens + j)], precision);
        }
      }
    }
    x = y;
  }
  const bool vk = args.state_layout == StateLayout::kVK;
  const std::int64_t hv = args.state_in.dim(1);
  const std::int64_t vs = args.state_in.dim(vk ? 2 : 3);
  const std::int64_t ks = args.state_in.dim(vk ? 3 : 2);
  const std::int64_t hk = (channels - hv * vs) / (2 * ks);
  Rule rule;
  const auto slice = [&](std::int64_t first, std::int64_t heads, std::int64_t width) {
    Array head_rows({batch, tokens, heads, width});
    for (std::int64_t row = 0; row < batch * tokens; ++row) {
      std::copy_n(x.values.begin() + row * channels + first, heads * width,
                  head_rows.values.begin() + row * heads * width);
    }
    return head_rows;
  };
  rule.q = slice(0, hk, ks);
  rule.k = slice(hk * ks, hk, ks);
  rule.v = slice(2 * hk * ks, hv, vs);
  normalize(rule.q, args.qk_norm, args.qk_norm_eps, read(args.q_norm_weight));
  normalize(rule.k, args.qk_norm, args.qk_norm_eps, read(args.k_norm_weight));
  compute_gates(args.gates, rule.g, rule.beta);
  rule.scale = args.scale ? *args.scale : 1.0 / std::sqrt(static_cast<double>(ks));
  rule.head_map = args.head_map;
  rule.initial_state = gather_states(args.state_in, args.state_indices, args.state_layout, batch, hv, vs, ks);
  RuleResult result = recurrence(rule, args.snapshots.defined());
  if (args.z.defined()) {
    const Array z = read(args.z);
    const Array weight = read(args.norm_weight);
    for (std::int64_t row = 0; row < result.o.size() / vs; ++row) {
      double* o = result.o.values.data() + row * vs;
      double squares = 0.0;
      for (std::int64_t i = 0; i < vs; ++i) squares += o[i] * o[i];
      const double norm = 1.0 / std::sqrt(squares / static_cast<double>(vs) + args.norm_eps);
      for (std::int64_t i = 0; i < vs; ++i) {
        const double gate = z.values[static_cast<std::size_t>(row * vs + i)];
        o[i] *= norm * weight(i) * gate * sigmoid(gate);
      }
    }
  }
  round_all(result.o, args.y.dtype, precision);
  out.o = std::move(result.o);
  out.final_state =
      scatter_states(result.final_state, args.state_out, args.state_indices, args.state_layout, precision);
  out.snapshots = lay_out_snapshots(result.snapshots, args.snapshots, args.state_layout, precision);
  return out;
}

}  // namespace thalweg::reference
