#pragma once

// The schedules of the original Metal kernels as formulas: their launches and traffic on their own shapes. B = 1,
// chunks of 64 tokens, 16-bit activations, f32 gates.

#include <cstdint>

namespace thalweg::metal::originals {

struct Shape {
  std::int64_t tokens;
  std::int64_t hk;
  std::int64_t hv;
  std::int64_t k;
  std::int64_t v;

  std::int64_t chunks() const { return (tokens + 63) / 64; }
};

// The expert matmul launches a threadgroup per expert, 64 outputs and 32 of the rows that an expert can have at most.
// Each threadgroup scans all ids.
struct ExpertSchedule {
  std::int64_t tokens;
  std::int64_t slots;
  std::int64_t experts;
  std::int64_t n;

  std::int64_t threadgroups() const { return experts * ((n + 63) / 64) * ((tokens * slots + 31) / 32); }
  std::int64_t ids_scanned() const { return threadgroups() * tokens * slots; }
};

// k k^T: a threadgroup per value head stages beta k, and reads k again for each element of the full square.
inline std::int64_t kkt_key_bytes(const Shape& s) { return s.chunks() * s.hv * (64 * s.k + 64 * 64 * s.k) * 2; }
inline std::int64_t kkt_products(const Shape& s) { return s.chunks() * s.hv * 64 * 64 * s.k; }

// Forward substitution: a thread computes the rows of its column with one dependent multiply-add after the other.
inline std::int64_t solve_chain() { return 64 * 63 / 2; }

// The decode step: a threadgroup per row of each value head's state reads q, k and both weights of the key head and
// computes their norms.
inline std::int64_t step_norms(const Shape& s) { return 2 * s.hv * s.v; }
inline std::int64_t step_query_key_bytes(const Shape& s, std::int64_t element) {
  return s.hv * s.v * 4 * s.k * element;
}

// The seven stages of the prefill, if each reads and writes each of its tensors once: bytes.
inline std::int64_t prefill_bytes(const Shape& s) {
  const std::int64_t keys = s.tokens * s.hk * s.k * 2;    // q or k
  const std::int64_t values = s.tokens * s.hv * s.v * 2;  // v, u, v_new or o
  const std::int64_t w = s.tokens * s.hv * s.k * 2;
  const std::int64_t gates = s.tokens * s.hv * 4;        // g or beta
  const std::int64_t square = s.tokens * s.hv * 64 * 4;  // a or its inverse
  const std::int64_t states = s.chunks() * s.hv * s.k * s.v * 2;
  const std::int64_t norms = 4 * keys;
  const std::int64_t sums = 2 * gates;
  const std::int64_t kkt = keys + 2 * gates + square;
  const std::int64_t solve = 2 * square;
  const std::int64_t w_u = keys + values + 2 * gates + square + w + values;
  const std::int64_t state = keys + w + values + gates + states + values;
  const std::int64_t output = 2 * keys + values + states + gates + values;
  return norms + sums + kkt + solve + w_u + state + output;
}

}  // namespace thalweg::metal::originals
