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

void compute_gates(const GateInputs& gates, const Array& a, const Array& b, Array& g, Array& beta) {
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
  if (args.gates.a.defined()) compute_gates(args.gates, read(args.gates.a), read(args.gates.b), rule.g, rule.beta);
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

namespace {

// The tokens of a fused step, packed: of each sequence those that are replayed, then its own.
struct StepTokens {
  Array x;                             // [1,T,channels]
  Array a;                             // [1,T,HV]
  Array b;                             // [1,T,HV]
  std::vector<std::int64_t> bounds;    // [N+1]
  std::vector<std::int64_t> replayed;  // [N]
};

// `committed`: only those that change the states.
StepTokens tokens_of(const GatedDeltaPrepStepArgs& args, bool committed) {
  std::vector<std::int64_t> own;
  for (const double bound : read(args.cu_seqlens).values) own.push_back(static_cast<std::int64_t>(bound));
  if (own.empty()) {
    for (std::int64_t b = 0; b <= args.x.dim(0); ++b) own.push_back(b * args.x.dim(1));
  }
  const Array counts = read(args.replay_counts);
  StepTokens tokens;
  tokens.bounds.push_back(0);
  const auto sequences = static_cast<std::int64_t>(own.size()) - 1;
  for (std::int64_t n = 0; n < sequences; ++n) {
    const std::int64_t slot = state_slot(args.state_indices, n);
    const std::int64_t replayed = args.replay_x.defined() && slot >= 0 ? static_cast<std::int64_t>(counts(n)) : 0;
    const std::int64_t length = own[static_cast<std::size_t>(n) + 1] - own[static_cast<std::size_t>(n)];
    tokens.replayed.push_back(replayed);
    tokens.bounds.push_back(tokens.bounds.back() + replayed +
                            (committed && args.drafts ? std::min<std::int64_t>(1, length) : length));
  }
  const auto gather = [&](const ConstTensor& of_call, const ConstTensor& of_replay) {
    const Array from = read(of_call);
    const Array before = read(of_replay);
    const std::int64_t width = of_call.dim(2);
    Array packed({1, tokens.bounds.back(), width});
    for (std::int64_t n = 0; n < sequences; ++n) {
      const auto at = static_cast<std::size_t>(n);
      for (std::int64_t t = tokens.bounds[at]; t < tokens.bounds[at + 1]; ++t) {
        const std::int64_t i = t - tokens.bounds[at];
        for (std::int64_t c = 0; c < width; ++c) {
          packed(0, t, c) =
              i < tokens.replayed[at]
                  ? before(state_slot(args.state_indices, n), i, c)
                  : from.values[static_cast<std::size_t>((own[at] + i - tokens.replayed[at]) * width + c)];
        }
      }
    }
    return packed;
  };
  tokens.x = gather(args.x, args.replay_x);
  tokens.a = gather(args.gates.a, args.replay_a);
  tokens.b = gather(args.gates.b, args.replay_b);
  return tokens;
}

// Convolves and activates the tokens' x, and returns the pool of windows after them.
Array convolve(const GatedDeltaPrepStepArgs& args, StepTokens& tokens, Precision precision) {
  const Array weight = read(args.conv_weight);
  const std::int64_t taps = weight.dim(1);
  Array windows = read(args.conv_state);
  Array y(tokens.x.shape());
  for (std::size_t n = 0; n + 1 < tokens.bounds.size(); ++n) {
    const std::int64_t slot = state_slot(args.state_indices, static_cast<std::int64_t>(n));
    const std::int64_t length = tokens.bounds[n + 1] - tokens.bounds[n];
    for (std::int64_t c = 0; c < tokens.x.dim(2); ++c) {
      std::vector<double> inputs(static_cast<std::size_t>(taps - 1), 0.0);
      for (std::int64_t j = 0; slot >= 0 && j < taps - 1; ++j)
        inputs[static_cast<std::size_t>(j)] = windows(slot, c, j);
      for (std::int64_t t = 0; t < length; ++t) {
        inputs.push_back(tokens.x(0, tokens.bounds[n] + t, c));
        double sum = 0.0;
        for (std::int64_t j = 0; j < taps; ++j) sum += weight(c, j) * inputs[static_cast<std::size_t>(t + j)];
        y(0, tokens.bounds[n] + t, c) = sum * sigmoid(sum);
      }
      for (std::int64_t j = 0; slot >= 0 && j < taps - 1; ++j) {
        windows(slot, c, j) = rounded(args.conv_state.dtype, inputs[static_cast<std::size_t>(length + j)], precision);
      }
    }
  }
  tokens.x = y;
  return windows;
}

// The recurrence of convolved tokens.
Rule rule_of(const GatedDeltaPrepStepArgs& args, const StepTokens& tokens) {
  const bool vk = args.state_layout == StateLayout::kVK;
  const std::int64_t hv = args.state_in.dim(1);
  const std::int64_t vs = args.state_in.dim(vk ? 2 : 3);
  const std::int64_t ks = args.state_in.dim(vk ? 3 : 2);
  const std::int64_t channels = tokens.x.dim(2);
  const std::int64_t count = tokens.x.dim(1);
  const std::int64_t hk = (channels - hv * vs) / (2 * ks);
  Rule rule;
  const auto slice = [&](std::int64_t first, std::int64_t heads, std::int64_t width) {
    Array head_rows({1, count, heads, width});
    for (std::int64_t row = 0; row < count; ++row) {
      std::copy_n(tokens.x.values.begin() + row * channels + first, heads * width,
                  head_rows.values.begin() + row * heads * width);
    }
    return head_rows;
  };
  rule.q = slice(0, hk, ks);
  rule.k = slice(hk * ks, hk, ks);
  rule.v = slice(2 * hk * ks, hv, vs);
  normalize(rule.q, args.qk_norm, args.qk_norm_eps, read(args.q_norm_weight));
  normalize(rule.k, args.qk_norm, args.qk_norm_eps, read(args.k_norm_weight));
  compute_gates(args.gates, tokens.a, tokens.b, rule.g, rule.beta);
  rule.scale = args.scale ? *args.scale : 1.0 / std::sqrt(static_cast<double>(ks));
  rule.head_map = args.head_map;
  rule.bounds = tokens.bounds;
  rule.initial_state = gather_states(args.state_in, args.state_indices, args.state_layout,
                                     static_cast<std::int64_t>(tokens.bounds.size()) - 1, hv, vs, ks);
  return rule;
}

// Rows of all tokens [1,T',...] without those that were replayed, in the shape of the call's own.
Array without_replayed(const Array& rows, const StepTokens& tokens, std::vector<std::int64_t> shape) {
  Array own(std::move(shape));
  const std::int64_t width = rows.dim(1) > 0 ? rows.size() / rows.dim(1) : 0;
  auto to = own.values.begin();
  for (std::size_t n = 0; n < tokens.replayed.size(); ++n) {
    const std::int64_t begin = tokens.bounds[n] + tokens.replayed[n];
    to = std::copy_n(rows.values.begin() + begin * width, (tokens.bounds[n + 1] - begin) * width, to);
  }
  return own;
}

// What the next call may replay: with drafts, their inputs in place of those that this one replays.
void keep_drafts(const GatedDeltaPrepStepArgs& args, GatedDeltaResult& out) {
  if (!args.replay_x.defined()) return;
  const Array bounds = read(args.cu_seqlens);
  const std::int64_t sequences = args.cu_seqlens.defined() ? bounds.dim(0) - 1 : args.x.dim(0);
  const auto kept = [&](const ConstTensor& of_call, const ConstTensor& of_replay) {
    const Array from = read(of_call);
    const std::int64_t width = of_call.dim(2);
    Array to = read(of_replay);
    for (std::int64_t n = 0; n < sequences && args.drafts; ++n) {
      const std::int64_t slot = state_slot(args.state_indices, n);
      const auto bound = [&](std::int64_t i) {
        return args.cu_seqlens.defined() ? static_cast<std::int64_t>(bounds(i)) : i * args.x.dim(1);
      };
      for (std::int64_t row = bound(n) + 1; row < bound(n + 1) && slot >= 0; ++row) {
        for (std::int64_t c = 0; c < width; ++c) {
          to(slot, row - bound(n) - 1, c) = from.values[static_cast<std::size_t>(row * width + c)];
        }
      }
    }
    return to;
  };
  out.replay_x = kept(args.x, args.replay_x);
  out.replay_a = kept(args.gates.a, args.replay_a);
  out.replay_b = kept(args.gates.b, args.replay_b);
}

// The gated norm of outputs [B,T,HV,V].
void gate_outputs(const GatedDeltaPrepStepArgs& args, Array& outputs) {
  const Array z = read(args.z);
  const Array weight = read(args.norm_weight);
  const std::int64_t vs = outputs.dim(3);
  for (std::int64_t row = 0; row < outputs.size() / vs; ++row) {
    double* o = outputs.values.data() + row * vs;
    double squares = 0.0;
    for (std::int64_t i = 0; i < vs; ++i) squares += o[i] * o[i];
    const double norm = 1.0 / std::sqrt(squares / static_cast<double>(vs) + args.norm_eps);
    for (std::int64_t i = 0; i < vs; ++i) {
      const double gate = z.values[static_cast<std::size_t>(row * vs + i)];
      o[i] *= norm * weight(i) * gate * sigmoid(gate);
    }
  }
}

}  // namespace

GatedDeltaResult gated_delta_prep_step(const GatedDeltaPrepStepArgs& args, Precision precision) {
  GatedDeltaResult out;
  StepTokens tokens = tokens_of(args, false);
  StepTokens committed = tokens_of(args, true);
  if (args.conv_weight.defined()) {
    convolve(args, tokens, precision);
    out.conv_state = convolve(args, committed, precision);
  }
  keep_drafts(args, out);
  RuleResult result = recurrence(rule_of(args, tokens), args.snapshots.defined());
  const std::int64_t b = args.x.dim(0);
  const std::int64_t t = args.x.dim(1);
  out.o = without_replayed(result.o, tokens, {b, t, result.o.dim(2), result.o.dim(3)});
  if (args.z.defined()) gate_outputs(args, out.o);
  round_all(out.o, args.y.dtype, precision);
  out.final_state = scatter_states(recurrence(rule_of(args, committed), false).final_state, args.state_out,
                                   args.state_indices, args.state_layout, precision);
  if (args.snapshots.defined()) {
    const Array& states = result.snapshots;
    out.snapshots =
        lay_out_snapshots(without_replayed(states, tokens, {b, t, states.dim(2), states.dim(3), states.dim(4)}),
                          args.snapshots, args.state_layout, precision);
  }
  return out;
}

}  // namespace thalweg::reference
