#include <algorithm>
#include <cmath>

#include "core/sequences.h"
#include "reference/gated_delta_rule.h"

namespace thalweg::reference {
namespace {

std::int64_t key_head(HeadMap map, std::int64_t h, std::int64_t hk, std::int64_t hv) {
  return map == HeadMap::kTiled ? h % hk : h / (hv / hk);
}

Precision seed_precision(Rounding rounding, Precision precision) {
  return rounding == Rounding::kSeed ? precision : Precision::kExact;
}

// Calls body(batch row, first token, tokens, chunk number in the row, is first of its sequence n, n) per chunk, in
// order.
template <class Body>
void for_each_chunk(const ConstTensor& cu_seqlens, std::int64_t batch, std::int64_t tokens, std::int64_t chunk_size,
                    Body body) {
  const Sequences sequences(cu_seqlens, batch, tokens);
  for (std::int64_t n = 0; n < sequences.count(); ++n) {
    const std::int64_t first = sequences.first_chunk(n, chunk_size);
    for (std::int64_t at = 0; at < sequences.length(n); at += chunk_size) {
      body(sequences.row(n), sequences.begin(n) + at, std::min(chunk_size, sequences.length(n) - at),
           first + at / chunk_size, n);
    }
  }
}

}  // namespace

Array chunk_local_cumsum(const ChunkLocalCumsumArgs& args, Precision precision) {
  const Array g = read(args.g);
  Array sums = g;
  for_each_chunk(args.cu_seqlens, g.dim(0), g.dim(1), args.chunk_size,
                 [&](std::int64_t b, std::int64_t t0, std::int64_t length, std::int64_t, std::int64_t) {
                   for (std::int64_t h = 0; h < g.dim(2); ++h) {
                     for (std::int64_t i = 1; i < length; ++i) sums(b, t0 + i, h) += sums(b, t0 + i - 1, h);
                   }
                 });
  round_all(sums, DType::kF32, precision);
  return sums;
}

Array l2norm(const L2normArgs& args, Precision precision) {
  Array y = read(args.x);
  const std::int64_t width = y.dim(3);
  for (std::int64_t row = 0; row < y.size() / std::max<std::int64_t>(width, 1); ++row) {
    double* x = y.values.data() + row * width;
    double squares = 0.0;
    for (std::int64_t i = 0; i < width; ++i) squares += x[i] * x[i];
    for (std::int64_t i = 0; i < width; ++i) x[i] /= std::sqrt(squares + args.eps);
  }
  round_all(y, args.y.dtype, precision);
  return y;
}

Array chunk_scaled_dot_kkt(const ChunkScaledDotKktArgs& args, Precision precision) {
  const Array k = read(args.k);
  const Array beta = read(args.beta);
  const Array g = read(args.g_cumsum);
  const std::int64_t hv = beta.dim(2);
  const Precision seed = seed_precision(args.rounding, precision);
  Array a({k.dim(0), k.dim(1), hv, args.chunk_size});
  for_each_chunk(args.cu_seqlens, k.dim(0), k.dim(1), args.chunk_size,
                 [&](std::int64_t b, std::int64_t t0, std::int64_t length, std::int64_t, std::int64_t) {
                   for (std::int64_t h = 0; h < hv; ++h) {
                     const std::int64_t kh = key_head(args.head_map, h, k.dim(2), hv);
                     for (std::int64_t i = 0; i < length; ++i) {
                       for (std::int64_t j = 0; j < i; ++j) {
                         double dot = 0.0;
                         for (std::int64_t d = 0; d < k.dim(3); ++d) {
                           dot += rounded(DType::kBF16, beta(b, t0 + i, h) * k(b, t0 + i, kh, d), seed) *
                                  k(b, t0 + j, kh, d);
                         }
                         a(b, t0 + i, h, j) = dot * std::exp(g(b, t0 + i, h) - g(b, t0 + j, h));
                       }
                     }
                   }
                 });
  round_all(a, DType::kF32, precision);
  return a;
}

Array solve_tril(const SolveTrilArgs& args, Precision precision) {
  const Array a = read(args.a);
  Array x({a.dim(0), a.dim(1), a.dim(2), a.dim(3)});
  for_each_chunk(args.cu_seqlens, a.dim(0), a.dim(1), args.chunk_size,
                 [&](std::int64_t b, std::int64_t t0, std::int64_t length, std::int64_t, std::int64_t) {
                   for (std::int64_t h = 0; h < a.dim(2); ++h) {
                     for (std::int64_t i = 0; i < length; ++i) {
                       for (std::int64_t j = 0; j <= i; ++j) {
                         double sum = i == j ? 1.0 : 0.0;
                         for (std::int64_t m = j; m < i; ++m) sum -= a(b, t0 + i, h, m) * x(b, t0 + m, h, j);
                         x(b, t0 + i, h, j) = sum;
                       }
                     }
                   }
                 });
  round_all(x, args.a_inv.dtype, precision);
  return x;
}

WU recompute_w_u(const RecomputeWUArgs& args, Precision precision) {
  const Array k = read(args.k);
  const Array v = read(args.v);
  const Array beta = read(args.beta);
  const Array g = read(args.g_cumsum);
  Array a = read(args.a_inv);
  const std::int64_t hv = v.dim(2);
  const Precision seed = seed_precision(args.rounding, precision);
  round_all(a, DType::kBF16, seed);
  WU result{Array({k.dim(0), k.dim(1), hv, k.dim(3)}), Array(v.shape())};
  for_each_chunk(
      args.cu_seqlens, k.dim(0), k.dim(1), args.chunk_size,
      [&](std::int64_t b, std::int64_t t0, std::int64_t length, std::int64_t, std::int64_t) {
        for (std::int64_t h = 0; h < hv; ++h) {
          const std::int64_t kh = key_head(args.head_map, h, k.dim(2), hv);
          for (std::int64_t i = 0; i < length; ++i) {
            for (std::int64_t j = 0; j <= i; ++j) {
              const double factor = a(b, t0 + i, h, j);
              const double write = beta(b, t0 + j, h);
              const double decayed = write * std::exp(g(b, t0 + j, h));
              for (std::int64_t d = 0; d < k.dim(3); ++d) {
                result.w(b, t0 + i, h, d) += factor * rounded(DType::kBF16, decayed * k(b, t0 + j, kh, d), seed);
              }
              for (std::int64_t d = 0; d < v.dim(3); ++d) {
                result.u(b, t0 + i, h, d) += factor * rounded(DType::kBF16, write * v(b, t0 + j, h, d), seed);
              }
            }
          }
        }
      });
  round_all(result.w, args.w.dtype, precision);
  round_all(result.u, args.u.dtype, precision);
  return result;
}

ChunkStates chunk_state(const ChunkStateArgs& args, Precision precision) {
  const Array k = read(args.k);
  const Array w = read(args.w);
  const Array u = read(args.u);
  const Array g = read(args.g_cumsum);
  const Array pool = read(args.initial_state);
  const std::int64_t hv = u.dim(2);
  const std::int64_t vs = u.dim(3);
  const std::int64_t ks = k.dim(3);
  const Precision seed = seed_precision(args.rounding, precision);
  const Sequences sequences(args.cu_seqlens, k.dim(0), k.dim(1));
  ChunkStates result;
  result.h = Array({k.dim(0), sequences.chunks(args.chunk_size), hv, vs, ks});
  result.v_new = Array(u.shape());
  result.final_state = read(args.final_state);
  const bool kv = args.state_layout == StateLayout::kKV;

  for (std::int64_t n = 0; n < sequences.count(); ++n) {
    const std::int64_t slot = state_slot(args.state_indices, n);
    const std::int64_t b = sequences.row(n);
    const std::int64_t first = sequences.first_chunk(n, args.chunk_size);
    for (std::int64_t h = 0; h < hv; ++h) {
      const std::int64_t kh = key_head(args.head_map, h, k.dim(2), hv);
      Array state({vs, ks});
      if (args.initial_state.defined() && slot >= 0) {
        for (std::int64_t i = 0; i < vs; ++i) {
          for (std::int64_t j = 0; j < ks; ++j) state(i, j) = kv ? pool(slot, h, j, i) : pool(slot, h, i, j);
        }
      }
      for (std::int64_t at = 0; at < sequences.length(n); at += args.chunk_size) {
        const std::int64_t t0 = sequences.begin(n) + at;
        const std::int64_t length = std::min<std::int64_t>(args.chunk_size, sequences.length(n) - at);
        const double last = g(b, t0 + length - 1, h);
        Array change({vs, ks});
        for (std::int64_t i = 0; i < vs; ++i) {
          for (std::int64_t j = 0; j < ks; ++j) result.h(b, first + at / args.chunk_size, h, i, j) = state(i, j);
          for (std::int64_t t = t0; t < t0 + length; ++t) {
            double fresh = u(b, t, h, i);
            for (std::int64_t j = 0; j < ks; ++j) fresh -= w(b, t, h, j) * state(i, j);
            result.v_new(b, t, h, i) = fresh;
            const double gated = rounded(DType::kBF16, fresh * std::exp(last - g(b, t, h)), seed);
            for (std::int64_t j = 0; j < ks; ++j) change(i, j) += gated * k(b, t, kh, j);
          }
        }
        for (std::int64_t i = 0; i < vs; ++i) {
          for (std::int64_t j = 0; j < ks; ++j) state(i, j) = std::exp(last) * state(i, j) + change(i, j);
        }
      }
      if (args.final_state.defined() && slot >= 0) {
        for (std::int64_t i = 0; i < vs; ++i) {
          for (std::int64_t j = 0; j < ks; ++j) {
            (kv ? result.final_state(slot, h, j, i) : result.final_state(slot, h, i, j)) =
                rounded(args.final_state.dtype, state(i, j), precision);
          }
        }
      }
    }
  }
  if (args.h.defined()) round_all(result.h, args.h.dtype, precision);
  if (args.v_new.defined()) round_all(result.v_new, args.v_new.dtype, precision);
  return result;
}

Array chunk_output(const ChunkOutputArgs& args, Precision precision) {
  const Array q = read(args.q);
  const Array k = read(args.k);
  const Array v = read(args.v_new);
  const Array state = read(args.h);
  const Array g = read(args.g_cumsum);
  const std::int64_t hv = v.dim(2);
  const std::int64_t ks = k.dim(3);
  const double scale = args.scale ? *args.scale : 1.0 / std::sqrt(static_cast<double>(ks));
  const Precision seed = seed_precision(args.rounding, precision);
  Array o(v.shape());
  for_each_chunk(args.cu_seqlens, k.dim(0), k.dim(1), args.chunk_size,
                 [&](std::int64_t b, std::int64_t t0, std::int64_t length, std::int64_t chunk, std::int64_t) {
                   for (std::int64_t h = 0; h < hv; ++h) {
                     const std::int64_t kh = key_head(args.head_map, h, k.dim(2), hv);
                     for (std::int64_t i = 0; i < length; ++i) {
                       std::vector<double> attention(static_cast<std::size_t>(i + 1), 0.0);
                       for (std::int64_t j = 0; j <= i; ++j) {
                         double dot = 0.0;
                         for (std::int64_t d = 0; d < ks; ++d) dot += q(b, t0 + i, kh, d) * k(b, t0 + j, kh, d);
                         const double gated = dot * std::exp(g(b, t0 + i, h) - g(b, t0 + j, h));
                         attention[static_cast<std::size_t>(j)] = rounded(DType::kBF16, gated, seed);
                       }
                       const double decay = std::exp(g(b, t0 + i, h));
                       for (std::int64_t c = 0; c < v.dim(3); ++c) {
                         double sum = 0.0;
                         for (std::int64_t d = 0; d < ks; ++d) sum += q(b, t0 + i, kh, d) * state(b, chunk, h, c, d);
                         sum *= decay;
                         for (std::int64_t j = 0; j <= i; ++j) {
                           sum += attention[static_cast<std::size_t>(j)] * v(b, t0 + j, h, c);
                         }
                         o(b, t0 + i, h, c) = scale * sum;
                       }
                     }
                   }
                 });
  round_all(o, args.o.dtype, precision);
  return o;
}

}  // namespace thalweg::reference
