#pragma once

// A step of llama.cpp and of MLX at the same shapes, from their sources (docs/metal.md names files and versions):
// launches as dispatched, and what threads load and store without caches, at the least: values that all lanes of a
// simdgroup load, norms' second loads and reductions' partial results are left out.

#include "metal/traffic.h"

namespace thalweg::metal::peers {

using traffic::ceil_div;
using traffic::Count;
using traffic::Traffic;

// A model's shapes, and what a step runs: tokens, and the context of attention.
struct Step {
  Count tokens, context;
  Count d, key_heads, value_heads, width, taps;  // of gated delta layers
  Count heads, kv_heads, head;                   // of attention layers
  Count experts, slots, inner, shared, vocabulary;
  Count delta_layers, attention_layers;

  Count layers() const { return delta_layers + attention_layers; }
  Count values() const { return value_heads * width; }
  Count keys() const { return key_heads * width; }
  Count channels() const { return 2 * keys() + values(); }
  Count state() const { return value_heads * width * width * 4; }
  // Weights of the projections of a gated delta layer and of an attention layer, and their outputs.
  Count delta_weights() const { return d * (channels() + 2 * values() + 2 * value_heads); }
  Count attention_weights() const { return d * (3 * heads + 2 * kv_heads) * head; }
  Count expert_tiles(Count rows) const { return experts * ceil_div(tokens * slots / experts, rows); }
};

// The operations of the table.
struct Steps {
  Traffic norms, projections, delta, attention, router, gate_up, down, ends;
  Traffic all() const { return norms + projections + delta + attention + router + gate_up + down + ends; }
};

// `in` and `out` values of `width` bytes for each of `count`, in one launch.
inline Traffic map(Count count, Count in, Count out, Count width) {
  return {1, count * in * width, count * out * width};
}

// ---- llama.cpp: activations in f32

struct LlamaProducts {
  Count tokens;
  Count tile = 32;  // tokens of a tile; 128 by the matrix units of M5
  // Q4_K, few tokens: 8 threads to a block of 256, 26 bytes of it each; two rows of weights to a simdgroup. Many: tiles
  // of 64 outputs and 32 tokens; 16 weights take 16 bytes of codes and 7 of scales.
  Count read(Count weights) const {
    if (tokens == 1) return weights * 26 / 32 + weights * 4 / 2;
    return weights * 23 / 16 * ceil_div(tokens, tile) + tokens * weights * 4 / 64;
  }
  Count read_f32(Count weights) const {
    if (tokens == 1) return weights * 4 + weights * 4 / 2;
    return weights * 4 * ceil_div(tokens, tile) + tokens * weights * 4 / 64;
  }
};

inline Steps llama(const Step& s) {
  const Count t = s.tokens;
  const LlamaProducts products{t};
  Steps steps;
  steps.norms = s.layers() * (2 * map(t * s.d, 2, 1, 4) + map(t * s.d, 2, 1, 4));
  steps.projections = s.delta_layers * Traffic{5, products.read(s.delta_weights()),
                                               4 * t * (s.channels() + s.values() + 2 * s.value_heads + s.d)} +
                      s.attention_layers * Traffic{4, products.read(s.attention_weights()),
                                                   4 * t * (2 * (s.heads + s.kv_heads) * s.head + s.d)};
  // Gates: sigmoid, sum, softplus, product. Convolution: old inputs gathered, joined, kept, convolved, silu. The state
  // gathered; norms of q and k; every row of a state reads q and k of every token; the state kept. Norm, silu and
  // product.
  const Count joined = s.channels() * (s.taps - 1 + t);
  const Count old = s.channels() * (s.taps - 1);
  const Traffic gates = map(t * s.value_heads, 1, 1, 4) + map(t * s.value_heads, 2, 1, 4) +
                        map(t * s.value_heads, 1, 1, 4) + map(t * s.value_heads, 2, 1, 4);
  const Traffic convolution = map(old, 1, 1, 4) + map(joined, 1, 1, 4) + map(old, 1, 1, 4) +
                              Traffic{1, t * s.channels() * 2 * s.taps * 4, t * s.channels() * 4} +
                              map(t * s.channels(), 1, 1, 4);
  const Traffic rule = 2 * Traffic{1, s.state(), s.state()} + 2 * map(t * s.keys(), 1, 1, 4) +
                       Traffic{1, s.state() + t * s.values() * (2 * s.width + 1) * 4, s.state() + t * s.values() * 4};
  const Traffic gated = map(t * s.values(), 1, 1, 4) + map(t * s.values(), 1, 1, 4) + map(t * s.values(), 2, 1, 4);
  steps.delta = s.delta_layers * (gates + convolution + rule + gated);
  // Norms and rotations of q and k, the gate made contiguous, both caches, attention, sigmoid and product. Few tokens:
  // each head reads the keys and values, partial results are joined. Many: blocks of 8 queries read what they see.
  const Count q = t * s.heads * s.head;
  const Count k = t * s.kv_heads * s.head;
  const Count seen = t == 1 ? s.heads * s.context : ceil_div(t, 8) * s.heads * (s.context + 64) / 2;
  const Traffic heads = map(q, 1, 1, 4) + map(k, 1, 1, 4) + map(q, 1, 1, 4) + map(q, 1, 1, 4) + map(k, 1, 1, 4) +
                        2 * Traffic{1, k * 4, k * 2};
  const Traffic attend{2, q * 4 + seen * s.head * 2 * 2, q * 4};
  steps.attention = s.attention_layers * (heads + attend + map(q, 1, 1, 4) + map(q, 2, 1, 4));
  // Softmax, order, the chosen scores, their sum, its least value, the quotient.
  const Traffic choice = 2 * map(t * s.experts, 1, 1, 4) + map(t * s.slots, 2, 1, 4) +
                         Traffic{1, t * s.slots * 4, t * 4} + map(t, 1, 1, 4) + map(t * s.slots, 2, 1, 4);
  steps.router = s.layers() * (Traffic{1, products.read_f32(s.experts * s.d), 4 * t * s.experts} + choice);
  // Experts: by vectors for a token, or lists and tiles.
  const Count matrix = s.inner * s.d;
  const Count rows = t * s.slots;
  const auto of_experts = [&](Count n) {
    if (t == 1) return Traffic{1, rows * products.read(matrix), rows * n * 4};
    return Traffic{2, s.expert_tiles(32) * matrix * 23 / 16 + rows * matrix * 4 / 64 + 4 * rows, rows * (n + 1) * 4};
  };
  const auto of_shared = [&](Count n) { return Traffic{1, products.read(s.shared * s.d), 4 * t * n}; };
  steps.gate_up = s.layers() * (2 * of_experts(s.inner) + map(rows * s.inner, 2, 1, 4) + 2 * of_shared(s.shared) +
                                map(t * s.shared, 2, 1, 4));
  // Down, weights, the sum over slots, the shared expert with its gate, both sums.
  steps.down = s.layers() * (of_experts(s.d) + map(rows * s.d, 1, 1, 4) + Traffic{1, rows * s.d * 4, t * s.d * 4} +
                             of_shared(s.d) + Traffic{1, products.read_f32(s.d), 4 * t} + map(t, 1, 1, 4) +
                             map(t * s.d, 1, 1, 4) + map(t * s.d, 3, 1, 4));
  steps.ends = Traffic{1, t * s.d * 9 / 16, t * s.d * 4} + map(t * s.d, 2, 1, 4) +
               Traffic{1, LlamaProducts{1}.read(s.vocabulary * s.d), s.vocabulary * 4};
  return steps;
}

// ---- MLX: activations in bf16, weights of 4 bits in groups of 64, the router's of 8 bits

struct MlxProducts {
  Count tokens;
  Count tile = 32;  // tokens and outputs of a tile; 64 by the matrix units of M5
  // Few tokens: 16 weights take 8 bytes and a scale and a bias; four rows to a simdgroup. Many: tiles of 32 by 32,
  // where scales are counted once for their group.
  Count read(Count weights) const {
    if (tokens == 1) return weights * 12 / 16 + weights * 2 / 4;
    return weights * 9 / 16 * ceil_div(tokens, tile) + tokens * weights * 2 / tile;
  }
  Count read_8_bits(Count weights) const {
    if (tokens == 1) return weights * 12 / 8 + weights * 2 / 4;
    return weights * 17 / 16 * ceil_div(tokens, tile) + tokens * weights * 2 / tile;
  }
};

inline Steps mlx(const Step& s) {
  const Count t = s.tokens;
  const MlxProducts products{t};
  const Count copies = t == 1 ? 0 : 1;  // of slices that are not contiguous
  const Count sums = t == 1 ? 0 : 1;    // of products of many rows that are split along K
  Steps steps;
  steps.norms = s.layers() * (2 * map(t * s.d, 2, 1, 2) + 2 * map(t * s.d, 2, 1, 2));
  steps.projections = s.delta_layers * Traffic{5 + 2 * sums, products.read(s.delta_weights()),
                                               2 * t * (s.channels() + s.values() + 2 * s.value_heads + s.d)} +
                      s.attention_layers * Traffic{4 + 2 * sums, products.read(s.attention_weights()),
                                                   2 * t * (2 * (s.heads + s.kv_heads) * s.head + s.d)};
  // Old and new inputs joined by two copies, what is kept copied (of a token's, the buffer is shared), convolved, silu.
  // Norms and scales of q and k, two launches each; sigmoid, and the decay; the rule, each row of which reads q and k
  // of every token; norm, and the gate.
  const Count old = s.channels() * (s.taps - 1);
  const Traffic convolution = map(old, 1, 1, 2) + map(t * s.channels(), 1, 1, 2) + copies * map(old, 1, 1, 2) +
                              Traffic{1, t * s.channels() * 2 * s.taps * 2, t * s.channels() * 2} +
                              map(t * s.channels(), 1, 1, 2);
  const Traffic rule = 4 * map(t * s.keys(), 1, 1, 2) + 2 * map(t * s.value_heads, 1, 1, 2) +
                       copies * (2 * map(t * s.keys(), 1, 1, 2) + map(t * s.values(), 1, 1, 2)) +
                       Traffic{1, s.state() + t * s.values() * (2 * s.width + 1) * 2, s.state() + t * s.values() * 2};
  steps.delta = s.delta_layers * (convolution + rule + map(t * s.values(), 1, 1, 2) + map(t * s.values(), 2, 1, 2));
  // q made contiguous, norms, rotations of a quarter of a copy, both caches, attention in two passes, the gate made
  // contiguous, sigmoid, product. Many tokens of heads of 256: q is scaled, scores, softmax and outputs are matrices in
  // memory, made by tiles of 64 by 64; the mask is made by three launches and applied by one; outputs are transposed.
  const Count q = t * s.heads * s.head;
  const Count k = t * s.kv_heads * s.head;
  const auto rotated = [](Count values) { return map(values, 1, 1, 2) + map(values / 4, 1, 1, 2); };
  const Traffic heads = 2 * map(q, 1, 1, 2) + rotated(q) + map(k, 1, 1, 2) + rotated(k) + 2 * map(k, 1, 1, 2);
  const Count scores = s.heads * t * s.context;
  const Traffic products_of_heads{2, 2 * scores * s.head * 2 * 2 / 64, scores * 2 + q * 2};
  const Traffic masked{4, scores * 3, t * s.context + scores * 2};
  const Traffic attend = t == 1 ? Traffic{2, q * 2 + s.heads * s.context * s.head * 2 * 2, q * 2}
                                : 2 * map(q, 1, 1, 2) + products_of_heads + masked + map(scores, 1, 1, 2);
  steps.attention = s.attention_layers * (heads + attend + 2 * map(q, 1, 1, 2) + map(q, 2, 1, 2));
  // Softmax, partition, the chosen scores, their sum and quotient.
  const Traffic choice = map(t * s.experts, 1, 1, 4) + map(t * s.experts, 1, 1, 4) + map(t * s.slots, 2, 1, 4) +
                         map(t * s.slots, 1, 0, 4) + map(t * s.slots, 2, 1, 4);
  steps.router = s.layers() * (Traffic{1 + sums, products.read_8_bits(s.experts * s.d), 2 * t * s.experts} + choice);
  // Many tokens are sorted by expert: ids copied, order and inverse order by four launches each, rows of tokens, ids
  // and inputs gathered, outputs put back. Tiles of 16 rows take one expert after the other, and the tile's rows for
  // each; an expert begins within a tile in 15 of 16 cases.
  const Count matrix = s.inner * s.d;
  const Count rows = t * s.slots;
  const Count visits = ceil_div(rows, 16) + (s.experts - 1) * 15 / 16;
  const auto of_experts = [&](Count n) {
    if (t == 1) return Traffic{1, rows * products.read(matrix), rows * n * 2};
    return Traffic{1, visits * matrix * 9 / 16 + visits * 16 * matrix * 2 / 32, rows * n * 2};
  };
  const auto of_shared = [&](Count n, Count launches) {
    return Traffic{launches, products.read(s.shared * s.d), 2 * t * n};
  };
  const Traffic sorted = copies * (11 * map(rows, 1, 1, 4) + map(rows * s.d, 1, 1, 2));
  steps.gate_up = s.layers() * (sorted + 2 * of_experts(s.inner) + map(rows * s.inner, 2, 1, 2) +
                                2 * of_shared(s.shared, 1 + sums) + map(t * s.shared, 2, 1, 2));
  // Down, weights, the sum over slots; the shared expert with its gate; the sum of the two.
  steps.down = s.layers() * (of_experts(s.d) + copies * map(rows * s.d, 1, 1, 2) + map(rows * s.d, 1, 1, 2) +
                             Traffic{1, rows * s.d * 2, t * s.d * 2} + of_shared(s.d, 1) +
                             Traffic{1 + sums, products.read_8_bits(s.d), 2 * t} + map(t, 1, 1, 2) +
                             map(t * s.d, 1, 1, 2) + map(t * s.d, 2, 1, 2));
  steps.ends = Traffic{4, t * s.d * 9 / 16, t * s.d * 2} + map(t * s.d, 2, 1, 2) +
               Traffic{1, MlxProducts{1}.read(s.vocabulary * s.d), s.vocabulary * 2};
  return steps;
}

}  // namespace thalweg::metal::peers
