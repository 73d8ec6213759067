#include "reference/moe.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace thalweg::reference {
namespace {

// Row `index...` of a tensor as an array of its own.
template <class... Index>
Array read_row(const ConstTensor& tensor, Index... index) {
  return read(ConstTensor(tensor.row(index...), tensor.dtype, {tensor.dim(tensor.rank - 1)}, tensor.device));
}

double dot(const double* a, const double* b, std::int64_t n) { return std::inner_product(a, a + n, b, 0.0); }

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

// One [K] row of x[T,K] or x[T,S,K].
const double* activation(const Array& x, std::int64_t t, std::int64_t s) {
  const bool per_slot = x.shape().size() == 3;
  const std::int64_t row = per_slot ? t * x.dim(1) + s : t;
  return x.values.data() + row * x.shape().back();
}

// The scores of one row of logits, NaN counted as minus infinity.
std::vector<double> scores_of(const std::vector<double>& logits, RouterScore score) {
  std::vector<double> scores(logits.size());
  const double top = *std::max_element(logits.begin(), logits.end());
  double sum = 0.0;
  for (const double logit : logits) sum += std::exp(logit - top);
  for (std::size_t e = 0; e < scores.size(); ++e) {
    scores[e] = score == RouterScore::kSigmoid ? sigmoid(logits[e]) : std::exp(logits[e] - top) / sum;
  }
  return scores;
}

// The sorted choice and its weights for one row of logits; `bias` may be null.
void route_row(const double* logits, std::int64_t experts, std::int64_t top_k, bool renormalize, RouterScore score,
               const double* bias, double* ids, double* weights) {
  std::vector<double> known(logits, logits + experts);
  for (double& logit : known) {
    if (std::isnan(logit)) logit = -std::numeric_limits<double>::infinity();
  }
  const std::vector<double> scores = scores_of(known, score);
  if (bias != nullptr) {
    for (std::size_t e = 0; e < known.size(); ++e) known[e] = scores[e] + bias[e];
  }
  std::vector<std::size_t> order(known.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return known[a] > known[b]; });
  double chosen = 0.0;
  for (std::int64_t i = 0; i < top_k; ++i) {
    const std::size_t e = order[static_cast<std::size_t>(i)];
    ids[i] = static_cast<double>(e);
    weights[i] = scores[e];
    chosen += scores[e];
  }
  if (!renormalize || chosen == 0.0) return;
  for (std::int64_t i = 0; i < top_k; ++i) weights[i] /= chosen;
}

// y[n] = weights[n,:] . x
std::vector<double> multiply(const Array& weights, const double* x) {
  const std::int64_t k = weights.shape().back();
  std::vector<double> y(static_cast<std::size_t>(weights.dim(0)));
  for (std::size_t n = 0; n < y.size(); ++n) y[n] = dot(weights.values.data() + static_cast<std::int64_t>(n) * k, x, k);
  return y;
}

// An operand of a product, as a kernel of k16Bit reads it.
Array read_operand(const ConstTensor& tensor, Precision precision) {
  Array values = read(tensor);
  if (precision == Precision::k16Bit) round_all(values, DType::kBF16, precision);
  return values;
}

// Each 32 values to multiples of a 127th of the largest of them.
void round_to_8_bits(std::vector<double>& values) {
  constexpr std::size_t kGroup = 32;
  for (std::size_t first = 0; first < values.size(); first += kGroup) {
    const auto begin = values.begin() + static_cast<std::ptrdiff_t>(first);
    const auto end = values.begin() + static_cast<std::ptrdiff_t>(std::min(first + kGroup, values.size()));
    double largest = 0.0;
    for (auto value = begin; value != end; ++value) largest = std::max(largest, std::abs(*value));
    if (largest == 0.0) continue;
    for (auto value = begin; value != end; ++value) *value = std::round(*value / largest * 127.0) * largest / 127.0;
  }
}

// A matrix of an expert as a matmul of this precision reads it, and how that treats activations.
class Matrix {
 public:
  Matrix(const ConstTensor& tensor, Precision precision)
      : weights_(read_operand(tensor, precision)), precision_(precision) {
    if (precision == Precision::k8Bit && !is_block_format(tensor.dtype)) precision_ = Precision::kExact;
  }

  std::vector<double> times(std::vector<double> x) const {
    if (precision_ == Precision::k16Bit) {
      for (double& value : x) value = rounded(DType::kBF16, value, precision_);
    } else if (precision_ == Precision::k8Bit) {
      round_to_8_bits(x);
    }
    return multiply(weights_, x.data());
  }

 private:
  Array weights_;
  Precision precision_;
};

// down(silu(gate x) * (up x)) for one token.
std::vector<double> expert_mlp(const ConstTensor& gate, const ConstTensor& up, const ConstTensor& down,
                               const std::vector<double>& x, Precision precision) {
  std::vector<double> inner = Matrix(gate, precision).times(x);
  const std::vector<double> right = Matrix(up, precision).times(x);
  for (std::size_t i = 0; i < inner.size(); ++i) inner[i] *= sigmoid(inner[i]) * right[i];
  std::vector<double> result = Matrix(down, precision).times(inner);
  if (precision == Precision::k16Bit) {
    for (double& value : result) value = rounded(DType::kBF16, value, precision);
  }
  return result;
}

}  // namespace

Routing route_top_k(const RouteTopKArgs& args, Precision precision) {
  const Array logits = read(args.router_logits);
  const Array bias = read(args.bias);
  const std::int64_t top_k = args.expert_ids.dim(1);
  Routing result{Array({logits.dim(0), top_k}), Array({logits.dim(0), top_k})};
  for (std::int64_t t = 0; t < logits.dim(0); ++t) {
    route_row(logits.values.data() + t * logits.dim(1), logits.dim(1), top_k, args.renormalize, args.score,
              args.bias.defined() ? bias.values.data() : nullptr, result.ids.values.data() + t * top_k,
              result.weights.values.data() + t * top_k);
  }
  round_all(result.weights, DType::kF32, precision);
  return result;
}

ExpertRows expert_rows(const ExpertRowsArgs& args) {
  const Array ids = read(args.expert_ids);
  ExpertRows result{Array({args.expert_offsets.dim(0)}), Array({ids.size()})};
  std::int64_t filled = 0;
  for (std::int64_t e = 0; e + 1 < args.expert_offsets.dim(0); ++e) {
    for (std::int64_t pair = 0; pair < ids.size(); ++pair) {
      if (ids.values[static_cast<std::size_t>(pair)] == static_cast<double>(e)) {
        result.rows(filled++) = static_cast<double>(pair);
      }
    }
    result.offsets(e + 1) = static_cast<double>(filled);
  }
  for (; filled < ids.size(); ++filled) result.rows(filled) = -1.0;  // as before the run
  return result;
}

Array mul_mat_id(const ExpertMatmulArgs& args, Precision precision) {
  const Array weight = read_operand(args.weight, precision);
  const Array x = read_operand(args.x, precision);
  const Array ids = read(args.expert_ids);
  const std::int64_t n = weight.dim(1);
  const std::int64_t k = weight.dim(2);
  Array y({ids.dim(0), ids.dim(1), n});
  for (std::int64_t t = 0; t < ids.dim(0); ++t) {
    for (std::int64_t s = 0; s < ids.dim(1); ++s) {
      const auto expert = static_cast<std::int64_t>(ids(t, s));
      if (expert < 0) continue;
      for (std::int64_t i = 0; i < n; ++i) {
        y(t, s, i) = dot(weight.values.data() + (expert * n + i) * k, activation(x, t, s), k);
      }
    }
  }
  round_all(y, args.y.dtype, precision);
  return y;
}

std::vector<double> mul_mat_id_at(const ExpertMatmulArgs& args, const std::vector<std::int64_t>& indices) {
  const Array x = read(args.x);
  const Array ids = read(args.expert_ids);
  const std::int64_t n = args.weight.dim(1);
  std::vector<double> result;
  for (const std::int64_t index : indices) {
    const std::int64_t t = index / n / ids.dim(1);
    const std::int64_t s = index / n % ids.dim(1);
    const Array row = read_row(args.weight, static_cast<std::int64_t>(ids(t, s)), index % n);
    result.push_back(dot(row.values.data(), activation(x, t, s), row.size()));
  }
  return result;
}

Array linear(const LinearArgs& args, Precision precision) {
  const Array weight = read_operand(args.weight, precision);
  const Array x = read_operand(args.x, precision);
  const Array bias = read(args.bias);
  Array y({x.dim(0), weight.dim(0)});
  for (std::int64_t t = 0; t < y.dim(0); ++t) {
    const std::vector<double> row = multiply(weight, activation(x, t, 0));
    for (std::int64_t n = 0; n < y.dim(1); ++n) {
      y(t, n) = row[static_cast<std::size_t>(n)] + (args.bias.defined() ? bias(n) : 0.0);
    }
  }
  round_all(y, args.y.dtype, precision);
  return y;
}

Array moe_ffn(const MoeFfnArgs& args, Precision precision) {
  const Array x = read(args.x);
  const Array router = read(args.router);
  const Array bias = read(args.router_bias);
  Array y({x.dim(0), x.dim(1)});
  std::vector<double> ids(static_cast<std::size_t>(args.top_k));
  std::vector<double> weights(ids.size());
  for (std::int64_t t = 0; t < x.dim(0); ++t) {
    const std::vector<double> token(activation(x, t, 0), activation(x, t, 0) + x.dim(1));
    const std::vector<double> logits = multiply(router, token.data());
    route_row(logits.data(), router.dim(0), args.top_k, args.renormalize, args.score,
              args.router_bias.defined() ? bias.values.data() : nullptr, ids.data(), weights.data());
    for (std::size_t s = 0; s < ids.size(); ++s) {
      const auto e = static_cast<std::int64_t>(ids[s]) - args.first_expert;
      if (e < 0 || e >= args.gate.dim(0)) continue;
      const std::vector<double> output =
          expert_mlp(select(args.gate, e), select(args.up, e), select(args.down, e), token, precision);
      for (std::int64_t d = 0; d < y.dim(1); ++d) y(t, d) += weights[s] * output[static_cast<std::size_t>(d)];
    }
    if (args.shared_gate.defined()) {
      const double share = sigmoid(dot(read(args.shared_router).values.data(), token.data(), x.dim(1)));
      const std::vector<double> output =
          expert_mlp(args.shared_gate, args.shared_up, args.shared_down, token, precision);
      for (std::int64_t d = 0; d < y.dim(1); ++d) y(t, d) += share * output[static_cast<std::size_t>(d)];
    }
  }
  round_all(y, args.y.dtype, precision);
  return y;
}

}  // namespace thalweg::reference
