#pragma once

// Launches and bytes of the products in a step, as formulas: bytes that threads load and store, without caches, as the
// executor counts them (model/whole_step.cc compares the two). Norms, moves and states are executed at their own sizes.

#include <algorithm>
#include <cstdint>
#include <ostream>

#include "thalweg/dtype.h"

namespace thalweg::metal::traffic {

using Count = std::int64_t;

struct Traffic {
  Count launches = 0;
  Count read = 0;
  Count written = 0;

  Count bytes() const { return read + written; }
  friend Traffic operator+(Traffic a, Traffic b) {
    return {a.launches + b.launches, a.read + b.read, a.written + b.written};
  }
  friend Traffic operator*(Count n, Traffic a) { return {n * a.launches, n * a.read, n * a.written}; }
  friend bool operator==(const Traffic&, const Traffic&) = default;
  friend std::ostream& operator<<(std::ostream& out, const Traffic& t) {
    return out << t.launches << " launches, " << t.read << " read, " << t.written << " written";
  }
};

inline Count ceil_div(Count a, Count b) { return (a + b - 1) / b; }

// Scales and minima of a block of Q4_K that a unit of 64 weights loads: two halves, and two groups of 32, of which
// those of the block's second half are spread over more bytes.
inline constexpr Count kHalves = 4;
inline constexpr Count kFirstGroups = 4;
inline constexpr Count kSecondGroups = 6;
// Of 16 neighbors, which have one group.
inline constexpr Count kFirstGroup = 2;
inline constexpr Count kSecondGroup = 4;

// What lanes load of a row of k weights in F32 or Q4_K for few rows of activations, if `k_of_lanes` weights are shared
// by a simdgroup's lanes. Codes once, scales once for each item of a lane.
inline Count row_bytes(DType format, Count k, Count k_of_lanes) {
  if (format == DType::kF32) return 4 * k;
  const Count items = k_of_lanes >= 2048 ? 1 : k_of_lanes >= 1024 ? 2 : 4;  // of a unit
  return k / 256 * (128 + 2 * items * (2 * kHalves + kFirstGroups + kSecondGroups));
}
// For a tile of 32 rows: every code's byte for each of its nibbles, scales for every 16 weights.
inline Count staged_bytes(DType format, Count k) {
  if (format == DType::kF32) return 4 * k;
  return k / 256 * (256 + 8 * (2 * kHalves + kFirstGroup + kSecondGroup));
}

// y [T,N] = x [T,K] times weights [N,K], or of two matrices.
struct Product {
  DType format = DType::kQ4_K;
  Count tokens, n, k;
  Count input = 2;  // bytes of an element
  Count output = 2;
  bool gated = false;

  Count matrices() const { return gated ? 2 : 1; }
  Traffic rows() const {
    return {1, matrices() * ceil_div(tokens, 4) * n * row_bytes(format, k, k) + tokens * ceil_div(n, 4) * k * input,
            tokens * n * output};
  }
  Traffic tiles() const {
    return {1, matrices() * ceil_div(tokens, 32) * n * staged_bytes(format, k) + tokens * ceil_div(n, 64) * k * input,
            tokens * n * output};
  }
};

// The expert block: T tokens of D, S of E experts of I, a shared one of J.
struct Experts {
  Count tokens, d, slots, experts, inner, shared;
  Count tiles = 0;  // of rows of one expert, 32 at the most, of a prefill

  Product router() const { return {DType::kF32, tokens, experts, d, 2, 4}; }
  Product shared_router() const { return {DType::kF32, tokens, 1, d, 2, 4}; }
  Product shared_gate_up() const { return {DType::kQ4_K, tokens, shared, d, 2, 4, true}; }
  Product shared_down() const { return {DType::kQ4_K, tokens, d, shared, 4, 4}; }
  // Ids and weights are written, and the weights divided by their sum.
  Traffic choice() const { return {1, tokens * (4 * experts + 4 * slots), tokens * slots * 12}; }

  Traffic gate_up_vectors() const {
    const Count ids = tokens * slots * ceil_div(inner, 16) * 128 * 4;
    const Count products = 2 * inner * row_bytes(DType::kQ4_K, d, d) + ceil_div(inner, 4) * d * 2;
    return {1, ids + tokens * slots * products, tokens * slots * inner * 4};
  }
  // The lanes share the items of all slots, and each has its own id and weight.
  Traffic down_vectors() const {
    const Count pairs = slots * inner >= 2048 ? 4 : slots * inner >= 1024 ? 2 : 1;
    const Count items = slots * inner / (16 * pairs);
    const Count products = slots * (d * row_bytes(DType::kQ4_K, inner, slots * inner) + ceil_div(d, 8) * inner * 4) +
                           ceil_div(d, 8) * items * 8;
    return {1, tokens * (products + d * 8), tokens * d * 2};
  }

  // Lists of rows and tiles for two products.
  Traffic lists() const {
    const Count pairs = tokens * slots;
    return {2, 2 * pairs * 4, 2 * ((experts + 1) * 4 + pairs * 4 + tiles * 12 + 12)};
  }
  Traffic product_tiles(Count n, Count k, Count input, bool gated) const {
    const Count pairs = tokens * slots;
    const Count columns = ceil_div(n, 64);
    const Count weights = (gated ? 2 : 1) * tiles * n * staged_bytes(DType::kQ4_K, k);
    const Count rows = columns * (tiles * 128 * 12 + pairs * 2 * 4);  // where tiles and rows are
    return {1, weights + columns * pairs * k * input + rows, pairs * n * 4};
  }
  // A thread has four columns, and loads weights once.
  Traffic combine() const {
    const Count threads = ceil_div(d, 512) * 128;
    return {1, tokens * (d * (slots * 4 + 4) + threads * (slots * 4 + 4)), tokens * d * 2};
  }

  Traffic by_vectors() const {
    return router().rows() + shared_router().rows() + shared_gate_up().rows() + choice() + shared_down().rows() +
           gate_up_vectors() + down_vectors();
  }
  Traffic by_tiles() const {
    return router().tiles() + shared_router().tiles() + shared_gate_up().tiles() + choice() + shared_down().tiles() +
           lists() + product_tiles(inner, d, 2, true) + product_tiles(d, inner, 4, false) + combine();
  }
};

}  // namespace thalweg::metal::traffic
