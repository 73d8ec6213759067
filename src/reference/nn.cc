#include "reference/nn.h"

#include <algorithm>
#include <cmath>

#include "core/cache_places.h"
#include "core/float16.h"
#include "core/sequences.h"
#include "quant/unpack.h"

namespace thalweg::reference {
namespace {

double sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }
double silu(double x) { return x * sigmoid(x); }

// x * rsqrt(mean x^2 + eps) for one row in place.
void normalize(double* x, std::int64_t width, double eps) {
  double squares = 0.0;
  for (std::int64_t i = 0; i < width; ++i) squares += x[i] * x[i];
  const double root = std::sqrt(squares / static_cast<double>(width) + eps);
  for (std::int64_t i = 0; i < width; ++i) x[i] /= root;
}

// One sequence and channel: the inputs before its tokens, then the tokens; taps over them, newest last.
struct Taps {
  Array weight;  // [C,W]
  Array bias;    // [C] or empty
  Activation activation;

  double output(std::int64_t channel, const std::vector<double>& inputs, std::int64_t token) const {
    double sum = bias.size() > 0 ? bias(channel) : 0.0;
    for (std::int64_t j = 0; j < weight.dim(1); ++j) {
      sum += weight(channel, j) * inputs[static_cast<std::size_t>(token + j)];
    }
    return activation == Activation::kSilu ? silu(sum) : sum;
  }
};

// The whole convolution, for both operations: `initial` and `final` are the pools before and after.
ConvResult convolve(const Array& x, const Taps& taps, const Array& initial, const ConstTensor& final_state,
                    const ConstTensor& state_indices, const Sequences& sequences, Precision precision) {
  const std::int64_t window = taps.weight.dim(1) - 1;
  ConvResult result{Array(x.shape()), read(final_state)};
  for (std::int64_t n = 0; n < sequences.count(); ++n) {
    const std::int64_t slot = state_slot(state_indices, n);
    for (std::int64_t c = 0; c < x.dim(2); ++c) {
      std::vector<double> inputs(static_cast<std::size_t>(window), 0.0);
      for (std::int64_t j = 0; j < window && initial.size() > 0 && slot >= 0; ++j) {
        inputs[static_cast<std::size_t>(j)] = initial(slot, c, j);
      }
      for (std::int64_t t = 0; t < sequences.length(n); ++t) {
        inputs.push_back(x(sequences.row(n), sequences.begin(n) + t, c));
      }
      for (std::int64_t t = 0; t < sequences.length(n); ++t) {
        result.y(sequences.row(n), sequences.begin(n) + t, c) = taps.output(c, inputs, t);
      }
      for (std::int64_t j = 0; j < window && final_state.defined() && slot >= 0; ++j) {
        const double last = inputs[inputs.size() - static_cast<std::size_t>(window - j)];
        result.state(slot, c, j) = rounded(final_state.dtype, last, precision);
      }
    }
  }
  return result;
}

}  // namespace

ConvResult causal_conv1d(const CausalConv1dArgs& args, Precision precision) {
  const Array x = read(args.x);
  ConvResult result =
      convolve(x, {read(args.weight), read(args.bias), args.activation}, read(args.initial_state), args.final_state,
               args.state_indices, Sequences(args.cu_seqlens, x.dim(0), x.dim(1)), precision);
  round_all(result.y, args.y.dtype, precision);
  return result;
}

ConvResult causal_conv1d_update(const CausalConv1dUpdateArgs& args, Precision precision) {
  const Array x = read(args.x);
  ConvResult result = convolve(x, {read(args.weight), read(args.bias), args.activation}, read(args.conv_state),
                               args.conv_state, args.state_indices, Sequences({}, x.dim(0), x.dim(1)), precision);
  round_all(result.y, args.y.dtype, precision);
  return result;
}

namespace {

void normalize_rows(Array& x, const Array& weight, float eps, bool plus_one) {
  const std::int64_t width = weight.dim(0);
  for (std::int64_t row = 0; row < x.size() / width; ++row) {
    double* values = x.values.data() + row * width;
    normalize(values, width, eps);
    for (std::int64_t i = 0; i < width; ++i) values[i] *= weight(i) + (plus_one ? 1.0 : 0.0);
  }
}

Array residual_sum(const RmsNormArgs& args) {
  Array sum = read(args.x);
  if (!args.delta.defined()) return sum;
  const Array delta = read(args.delta);
  for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += delta.values[i];
  return sum;
}

}  // namespace

Array rms_norm_sum(const RmsNormArgs& args, Precision precision) {
  Array sum = residual_sum(args);
  round_all(sum, args.sum.dtype, precision);
  return sum;
}

Array rms_norm(const RmsNormArgs& args, Precision precision) {
  Array y = residual_sum(args);
  const Array weight = read(args.weight);
  normalize_rows(y, weight, args.eps, args.weight_plus_one);
  round_all(y, args.y.dtype, precision);
  return y;
}

Array gated_rms_norm(const GatedRmsNormArgs& args, Precision precision) {
  Array y = read(args.x);
  const Array z = read(args.z);
  const Array weight = read(args.weight);
  const std::int64_t width = weight.dim(0);
  for (std::int64_t row = 0; row < y.size() / width; ++row) {
    double* values = y.values.data() + row * width;
    const double* gates = z.values.data() + row * width;
    normalize(values, width, args.eps);
    for (std::int64_t i = 0; i < width; ++i) values[i] *= weight(i) * silu(gates[i]);
  }
  round_all(y, args.y.dtype, precision);
  return y;
}

Array rope(const RopeArgs& args, Precision precision) {
  Array x = read(args.x);
  if (args.norm_weight.defined()) {
    normalize_rows(x, read(args.norm_weight), args.norm_eps, args.norm_weight_plus_one);
  }
  const Array positions = read(args.positions);
  const bool given = args.frequencies.defined();
  const Array frequencies = given ? read(args.frequencies) : Array({0});
  Array y = x;
  const std::int64_t half = args.rotary_dim / 2;
  for (std::int64_t t = 0; t < x.dim(0); ++t) {
    for (std::int64_t i = 0; i < half; ++i) {
      // The frequency is f32 by contract, in any precision.
      const double exponent = -2.0 * static_cast<double>(i) / args.rotary_dim;
      const double plain = static_cast<float>(std::pow(static_cast<double>(args.theta), exponent));
      const double frequency = given ? frequencies(i) : plain;
      const double cosine = static_cast<double>(args.scale) * std::cos(positions(t) * frequency);
      const double sine = static_cast<double>(args.scale) * std::sin(positions(t) * frequency);
      for (std::int64_t h = 0; h < x.dim(1); ++h) {
        y(t, h, i) = x(t, h, i) * cosine - x(t, h, i + half) * sine;
        y(t, h, i + half) = x(t, h, i + half) * cosine + x(t, h, i) * sine;
      }
    }
  }
  round_all(y, args.y.dtype, precision);
  return y;
}

Array embedding(const EmbeddingArgs& args, Precision precision) {
  const std::int64_t width = args.table.dim(1);
  Array y({args.ids.dim(0), width});
  std::vector<float> row(static_cast<std::size_t>(width));
  for (std::int64_t t = 0; t < args.ids.dim(0); ++t) {
    unpack(args.table.dtype, args.table.row(static_cast<const std::int32_t*>(args.ids.data)[t]), width, row.data());
    std::copy(row.begin(), row.end(), y.values.begin() + t * width);
  }
  round_all(y, args.y.dtype, precision);
  return y;
}

Array add(const AddArgs& args, Precision precision) {
  Array y = read(args.a);
  const Array b = read(args.b);
  for (std::size_t i = 0; i < y.values.size(); ++i) y.values[i] += b.values[i];
  round_all(y, args.y.dtype, precision);
  return y;
}

namespace {

// What blocks of Q8_0 hold of `count` values.
void round_to_q8_0(const double* values, std::int64_t count, Precision precision, double* to) {
  if (precision == Precision::kExact) {
    std::copy_n(values, count, to);
    return;
  }
  for (std::int64_t block = 0; block < count; block += 32) {
    float largest = 0.0F;
    for (std::int64_t i = block; i < block + 32; ++i) {
      largest = std::max(largest, static_cast<float>(std::abs(values[i])));
    }
    float scale = round_to_f16(std::min(largest / 127.0F, 65504.0F));
    if (scale == 0.0F && largest > 0.0F) scale = 0x1p-24F;
    const float inverse = scale == 0.0F ? 0.0F : 1.0F / scale;
    for (std::int64_t i = block; i < block + 32; ++i) {
      const float code = std::nearbyint(static_cast<float>(values[i]) * inverse);
      to[i] = scale * std::clamp(code, -127.0F, 127.0F);
    }
  }
}

}  // namespace

Caches store_kv(const StoreKvArgs& args, Precision precision) {
  Caches caches{read(args.k_cache), read(args.v_cache)};
  const Array k = read(args.k);
  const Array v = read(args.v);
  const Sequences sequences(args.cu_seqlens, 1, k.dim(0));
  const CachePlaces places(args.slots, args.pages, args.k_cache);
  const auto put = [&](Array& cache, std::int64_t slot, std::int64_t position, const Array& rows, std::int64_t t) {
    const std::int64_t row = rows.dim(1) * rows.dim(2);
    const double* from = rows.values.data() + t * row;
    double* to = cache.values.data() + (slot * cache.dim(1) + position) * row;
    if (args.k_cache.dtype == DType::kQ8_0) return round_to_q8_0(from, row, precision, to);
    for (std::int64_t i = 0; i < row; ++i) to[i] = rounded(args.k_cache.dtype, from[i], precision);
  };
  for (std::int64_t n = 0; n < sequences.count(); ++n) {
    if (places.absent(n)) continue;
    const std::int64_t before = static_cast<const std::int32_t*>(args.lengths.data)[n] - sequences.length(n);
    for (std::int64_t i = 0; i < sequences.length(n); ++i) {
      const CachePlaces::Place place = places.place(n, before + i);
      put(caches.k, place.slot, place.row, k, sequences.begin(n) + i);
      put(caches.v, place.slot, place.row, v, sequences.begin(n) + i);
    }
  }
  return caches;
}

Qkvz split_qkvz(const SplitQkvzArgs& args) {
  const Array x = read(args.x);
  Qkvz result;
  std::int64_t first = 0;
  for (const auto& [output, tensor] : {std::pair{&result.q, &args.q}, std::pair{&result.k, &args.k},
                                       std::pair{&result.v, &args.v}, std::pair{&result.z, &args.z}}) {
    *output = Array({x.dim(0), x.dim(1), tensor->dim(2)});
    for (std::int64_t t = 0; t < x.dim(0); ++t) {
      for (std::int64_t h = 0; h < x.dim(1); ++h) {
        for (std::int64_t i = 0; i < tensor->dim(2); ++i) (*output)(t, h, i) = x(t, h, first + i);
      }
    }
    first += tensor->dim(2);
  }
  return result;
}

Array swiglu(const SwigluArgs& args, Precision precision) {
  Array y = read(args.gate);
  const Array up = read(args.up);
  for (std::size_t i = 0; i < y.values.size(); ++i) y.values[i] = silu(y.values[i]) * up.values[i];
  round_all(y, args.y.dtype, precision);
  return y;
}

namespace {

// A row of a [T,HQ,D] tensor.
std::vector<double> head_row(const ConstTensor& tensor, std::int64_t token, std::int64_t head) {
  return read(select(select(narrow(tensor, 0, token, 1), 0), head)).values;
}

// As kernels of 16-bit operands round a query: for f16 the row is scaled so that its largest value is in [1,2).
void round_query(std::vector<double>& query, DType dtype) {
  double scale = 1.0;
  if (dtype == DType::kQ8_0) dtype = DType::kF16;
  if (dtype == DType::kF16) {
    double largest = 0.0;
    for (const double value : query) largest = std::max(largest, std::abs(value));
    if (largest > 0.0) scale = std::exp2(-std::ilogb(largest));
  }
  for (double& value : query) value = rounded(dtype, value * scale, Precision::kRounded) / scale;
}

}  // namespace

Attention::Attention(const AttentionArgs& args)
    : args_(args), places_(args_.slots, args_.pages, args_.k_cache), sequences_(args_.cu_seqlens, 1, args_.q.dim(0)) {}

void Attention::gather(std::int64_t n) const {
  if (cached_.sequence == n) return;
  const std::int64_t length = static_cast<const std::int32_t*>(args_.lengths.data)[n];
  const std::int64_t row = args_.k_cache.dim(2) * args_.k_cache.dim(3);
  cached_ = {n, Array({length, args_.k_cache.dim(2), args_.k_cache.dim(3)}),
             Array({length, args_.k_cache.dim(2), args_.k_cache.dim(3)})};
  std::int64_t count = 0;
  for (std::int64_t first = 0; first < length; first += count) {
    const CachePlaces::Place place = places_.place(n, first);
    count = std::min(length - first, args_.k_cache.dim(1) - place.row);
    for (const auto& [cache, to] : {std::pair{&args_.k_cache, &cached_.k}, std::pair{&args_.v_cache, &cached_.v}}) {
      const std::vector<double> values = read(narrow(select(*cache, place.slot), 0, place.row, count)).values;
      std::copy(values.begin(), values.end(), to->values.begin() + first * row);
    }
  }
}

std::vector<double> Attention::weights(std::int64_t token, std::int64_t head, Precision precision) const {
  const std::int64_t n = cached_.sequence;
  const std::int64_t width = args_.q.dim(2);
  const std::int64_t visible = cached_.k.dim(0) - sequences_.length(n) + (token - sequences_.begin(n)) + 1;
  const double scale = args_.scale ? *args_.scale : 1.0 / std::sqrt(static_cast<double>(width));
  std::vector<double> query = head_row(args_.q, token, head);
  if (precision == Precision::k16Bit) round_query(query, args_.bf16_operands ? DType::kBF16 : args_.k_cache.dtype);
  std::vector<double> weights(static_cast<std::size_t>(visible), 0.0);
  for (std::int64_t s = 0; s < visible; ++s) {
    const double* key = cached_.row(cached_.k, s, head / group());
    double& score = weights[static_cast<std::size_t>(s)];
    for (std::size_t i = 0; i < query.size(); ++i) score += query[i] * operand(key[i], precision);
    score *= scale;
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  double sum = 0.0;
  for (double& weight : weights) sum += weight = std::exp(weight - largest);
  for (double& weight : weights) weight /= sum;
  return weights;
}

double Attention::operand(double cached, Precision precision) const {
  if (precision != Precision::k16Bit) return cached;
  if (args_.bf16_operands) return rounded(DType::kBF16, cached, Precision::kRounded);
  return args_.k_cache.dtype == DType::kQ8_0 ? rounded(DType::kF16, cached, Precision::kRounded) : cached;
}

std::vector<double> Attention::gates(std::int64_t token, std::int64_t head) const {
  if (!args_.gate.defined()) return std::vector<double>(static_cast<std::size_t>(args_.q.dim(2)), 1.0);
  std::vector<double> gates = head_row(args_.gate, token, head);
  for (double& gate : gates) gate = sigmoid(gate);
  return gates;
}

std::int64_t Attention::sequence_of(std::int64_t token) const {
  std::int64_t n = 0;
  while (token >= sequences_.begin(n) + sequences_.length(n)) ++n;
  return n;
}

std::vector<double> Attention::row(std::int64_t token, std::int64_t head, Precision precision) const {
  const std::int64_t n = sequence_of(token);
  std::vector<double> output(static_cast<std::size_t>(args_.q.dim(2)), 0.0);
  if (places_.absent(n)) return output;
  gather(n);
  const std::vector<double> shares = weights(token, head, precision);
  for (std::size_t s = 0; s < shares.size(); ++s) {
    const double* value = cached_.row(cached_.v, static_cast<std::int64_t>(s), head / group());
    for (std::size_t i = 0; i < output.size(); ++i) output[i] += shares[s] * operand(value[i], precision);
  }
  const std::vector<double> factors = gates(token, head);
  for (std::size_t i = 0; i < output.size(); ++i) {
    output[i] *= factors[i];
    if (precision == Precision::kRounded) output[i] = rounded(args_.o.dtype, output[i], precision);
  }
  return output;
}

double Attention::weight_noise(std::int64_t token, std::int64_t head) const {
  const std::int64_t n = sequence_of(token);
  if (places_.absent(n)) return 0.0;
  gather(n);
  const double unit = args_.k_cache.dtype == DType::kBF16 || args_.bf16_operands ? 0x1p-8 : 0x1p-11;
  const std::vector<double> shares = weights(token, head, Precision::kExact);
  const std::vector<double> factors = gates(token, head);
  double squares = 0.0;
  for (std::size_t s = 0; s < shares.size(); ++s) {
    const double* value = cached_.row(cached_.v, static_cast<std::int64_t>(s), head / group());
    double square = 0.0;
    for (std::size_t i = 0; i < factors.size(); ++i) square += factors[i] * value[i] * factors[i] * value[i];
    squares += shares[s] * shares[s] * square;
  }
  return unit * unit / 3.0 * squares;
}

Array attention(const AttentionArgs& args, Precision precision) {
  const Attention oracle(args);
  Array o({args.q.dim(0), args.q.dim(1), args.q.dim(2)});
  auto next = o.values.begin();
  for (std::int64_t t = 0; t < args.q.dim(0); ++t) {
    for (std::int64_t h = 0; h < args.q.dim(1); ++h) {
      const std::vector<double> row = oracle.row(t, h, precision);
      next = std::copy(row.begin(), row.end(), next);
    }
  }
  return o;
}

}  // namespace thalweg::reference
