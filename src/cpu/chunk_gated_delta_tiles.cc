// Prefill in chunks of 64 tokens with the six products of chunk_gated_delta_rule.cc on matrix units: their operands are
// rounded to bf16, everything else is f32, the state and the triangular solve too. The state is kept as [V,K]. Chunks
// that are not full are filled with zeros.

#include <algorithm>
#include <cmath>
#include <string>

#include "cpu/chunk_head.h"
#include "cpu/tile_ops.h"

namespace thalweg::cpu {
namespace {

constexpr std::int64_t kChunkTiles = kChunk / kTileSide;
constexpr std::int64_t kChunkSteps = kChunk / kTileDepth;
constexpr std::int64_t kPairedStride = kChunkSteps * kTileValues;  // of the tiles of 16 columns of a matrix [C,.]

struct Buffers {
  Buffers(Arena& arena, std::int64_t ks, std::int64_t vs)
      : state(arena.take<float>(vs * ks)),
        q(arena.take<float>(kChunk * ks)),
        k(arena.take<float>(kChunk * ks)),
        v(arena.take<float>(kChunk * vs)),
        o(arena.take<float>(kChunk * vs)),
        turned(arena.take<float>(kChunk * vs)),
        lower(arena.take<float>(kChunk * kChunk)),
        attention(arena.take<float>(kChunk * kChunk)),
        negated(arena.take<float>(16 * kChunk)),
        g(arena.take<float>(kChunk)),
        beta(arena.take<float>(kChunk)),
        staging(arena.take<float>(state_staging(vs, ks))),
        q_rows(arena.take<std::uint16_t>(kChunk * ks)),
        k_rows(arena.take<std::uint16_t>(kChunk * ks)),
        k_tiles(arena.take<std::uint16_t>(kChunk * ks)),
        k_pairs(arena.take<std::uint16_t>(kChunk * ks)),
        v_pairs(arena.take<std::uint16_t>(kChunk * vs)),
        v_rows(arena.take<std::uint16_t>(kChunk * vs)),
        attention_rows(arena.take<std::uint16_t>(kChunk * kChunk)),
        state_tiles(arena.take<std::uint16_t>(vs * ks)) {}

  float* state;      // S [V,K]
  float* q;          // [C,K]
  float* k;          // [C,K]
  float* v;          // [C,V], then V'
  float* o;          // [C,V]
  float* turned;     // [V,C]
  float* lower;      // L [C,C]
  float* attention;  // P [C,C]
  float* negated;    // what solve_unit_lower() needs
  float* g;          // [C], cumulative
  float* beta;       // [C]
  float* staging;
  std::uint16_t* q_rows;          // q [C,K]
  std::uint16_t* k_rows;          // k [C,K]
  std::uint16_t* k_tiles;         // k as the right side of products along K
  std::uint16_t* k_pairs;         // k as the right side of products along tokens
  std::uint16_t* v_pairs;         // V', the same
  std::uint16_t* v_rows;          // exp(G_last - G) V' [V,C]
  std::uint16_t* attention_rows;  // P [C,C]
  std::uint16_t* state_tiles;     // S as the right side of products along K
};

std::int64_t floats(const ChunkGatedDeltaRuleArgs& args) {
  Arena arena;
  const std::int64_t ks = args.k.dim(3);
  const std::int64_t vs = args.v.dim(3);
  const Buffers counted(arena, ks, vs);
  const std::size_t bytes = arena.used() + sizeof(float) - 1;
  return std::max(static_cast<std::int64_t>(bytes / sizeof(float)), ChunkHead::short_floats(vs, ks));
}

class HeadPrefill {
 public:
  HeadPrefill(const ChunkHead& head, Arena scratch) : head_(head), m_(scratch, head.ks, head.vs) {}

  void run() const {
    head_.load(Orientation::kVK, m_.state, m_.staging);
    head_.for_each_chunk([&](const Chunk& chunk, std::int64_t at) {
      head_.store_checkpoint(at, Orientation::kVK, m_.state, m_.staging);
      head_.load_inputs(chunk, m_.q, m_.k, m_.v, m_.g, m_.beta, m_.staging);
      fill_up(chunk.length);
      round_inputs();
      form_matrices();
      solve_values();
      store_output(chunk);
      advance_state();
    });
    head_.store(Orientation::kVK, m_.state, m_.staging);
  }

 private:
  // Tokens that are not there change nothing.
  void fill_up(std::int64_t length) const {
    const std::int64_t missing = kChunk - length;
    if (missing == 0) return;
    std::fill_n(m_.q + length * ks_, missing * ks_, 0.0F);
    std::fill_n(m_.k + length * ks_, missing * ks_, 0.0F);
    std::fill_n(m_.v + length * vs_, missing * vs_, 0.0F);
    std::fill_n(m_.beta + length, missing, 0.0F);
    std::fill_n(m_.g + length, missing, m_.g[length - 1]);
  }

  void round_inputs() const {
    tiles_.round(m_.q, kChunk * ks_, m_.q_rows);
    tiles_.round(m_.k, kChunk * ks_, m_.k_rows);
    pack(m_.k, kChunk, m_.k_tiles);
    pack(m_.state, vs_, m_.state_tiles);
    pair(m_.k, ks_, m_.k_pairs);
  }
  // Rows [n,K] as the right side of products along K.
  void pack(const float* rows, std::int64_t n, std::uint16_t* to) const {
    for (std::int64_t i = 0; i < n; i += kTileSide) {
      const void* sixteen[kTileSide];
      for (std::int64_t r = 0; r < kTileSide; ++r) sixteen[r] = rows + (i + r) * ks_;
      tiles_.pack(DType::kF32, sixteen, ks_, to + i * ks_);
    }
  }
  // Rows [C,n] as the right side of products along tokens.
  void pair(const float* rows, std::int64_t n, std::uint16_t* to) const {
    for (std::int64_t i = 0; i < kChunk; i += 2) {
      tiles_.pair_rows(rows + i * n, rows + (i + 1) * n, n, to + i * kTileSide, kPairedStride);
    }
  }

  // [C,K] times the transpose of k or S [16 b_tiles, K].
  void multiply_along_keys(const std::uint16_t* rows, std::int64_t begin, std::int64_t end, const std::uint16_t* b,
                           std::int64_t b_tiles, float* c, std::int64_t c_row) const {
    TileProduct product{};
    product.a = rows + begin * kTileSide * ks_;
    product.a_tiles = end - begin;
    product.a_row = ks_;
    product.b = b;
    product.b_tiles = b_tiles;
    product.b_stride = kTileSide * ks_;
    product.steps = ks_ / kTileDepth;
    product.c = c + begin * kTileSide * c_row;
    product.c_row = c_row;
    tiles_.multiply_rows(product);
  }
  // The lower half of [C,K] times the transpose of k.
  void multiply_lower(const std::uint16_t* rows, float* c) const {
    for (std::int64_t begin = 0; begin < kChunkTiles; begin += 2) {
      multiply_along_keys(rows, begin, begin + 2, m_.k_tiles, begin + 2, c, kChunk);
    }
  }

  // L and P.
  void form_matrices() const {
    multiply_lower(m_.k_rows, m_.lower);
    for (std::int64_t i = 0; i < kChunk; ++i) {
      vec_.scale(m_.beta[i], m_.lower + i * kChunk, i, m_.lower + i * kChunk);
    }
    apply_decay(m_.lower, kChunk, kChunk, m_.g, false);
    multiply_lower(m_.q_rows, m_.attention);
    apply_decay(m_.attention, kChunk, kChunk, m_.g, true);
    tiles_.round(m_.attention, kChunk * kChunk, m_.attention_rows);
  }

  // v becomes V'; o holds k S meanwhile.
  void solve_values() const {
    multiply_along_keys(m_.k_rows, 0, kChunkTiles, m_.state_tiles, vs_ / kTileSide, m_.o, vs_);
    for (std::int64_t i = 0; i < kChunk; ++i) {
      vec_.axpy(-std::exp(m_.g[i]), m_.o + i * vs_, vs_, m_.v + i * vs_);
      vec_.scale(m_.beta[i], m_.v + i * vs_, vs_, m_.v + i * vs_);
    }
    solve_unit_lower(m_.lower, kChunk, kChunk, m_.v, vs_, m_.negated);
  }

  void store_output(const Chunk& chunk) const {
    multiply_along_keys(m_.q_rows, 0, kChunkTiles, m_.state_tiles, vs_ / kTileSide, m_.o, vs_);
    for (std::int64_t i = 0; i < kChunk; ++i) {
      vec_.scale(std::exp(m_.g[i]), m_.o + i * vs_, vs_, m_.o + i * vs_);
    }
    pair(m_.v, vs_, m_.v_pairs);
    for (std::int64_t begin = 0; begin < kChunkTiles; begin += 2) {
      TileProduct product{};
      product.a = m_.attention_rows + begin * kTileSide * kChunk;
      product.a_tiles = 2;
      product.a_row = kChunk;
      product.b = m_.v_pairs;
      product.b_tiles = vs_ / kTileSide;
      product.b_stride = kPairedStride;
      product.steps = begin / 2 + 1;  // 32 tokens each: later ones count 0
      product.c = m_.o + begin * kTileSide * vs_;
      product.c_row = vs_;
      product.accumulate = true;
      tiles_.multiply_rows(product);
    }
    vec_.scale(head_.scale, m_.o, chunk.length * vs_, m_.o);
    store_head(head_.args.o, chunk, head_.h, m_.o);
  }

  // The state after the chunk. Scales v.
  void advance_state() const {
    const float last = m_.g[kChunk - 1];
    for (std::int64_t i = 0; i < kChunk; ++i) {
      vec_.scale(std::exp(last - m_.g[i]), m_.v + i * vs_, vs_, m_.v + i * vs_);
    }
    vec_.transpose(kChunk, vs_, m_.v, vs_, m_.turned, kChunk);
    tiles_.round(m_.turned, vs_ * kChunk, m_.v_rows);
    vec_.scale(std::exp(last), m_.state, vs_ * ks_, m_.state);
    TileProduct product{};
    product.a = m_.v_rows;
    product.a_tiles = vs_ / kTileSide;
    product.a_row = kChunk;
    product.b = m_.k_pairs;
    product.b_tiles = ks_ / kTileSide;
    product.b_stride = kPairedStride;
    product.steps = kChunkSteps;
    product.c = m_.state;
    product.c_row = ks_;
    product.accumulate = true;
    tiles_.multiply_rows(product);
  }

  const VectorOps& vec_ = vector_ops();
  const TileOps& tiles_ = *tile_ops();
  const ChunkHead& head_;
  const std::int64_t ks_ = head_.ks;
  const std::int64_t vs_ = head_.vs;
  const Buffers m_;
};

}  // namespace

std::string tile_rule_reason(const ChunkGatedDeltaRuleArgs& args, const Stream&) {
  if (tile_ops() == nullptr) return "no AMX";
  const DType dtype = args.q.dtype;
  if (dtype == DType::kF16) return "bf16 would round f16";
  if (dtype == DType::kF32 && !args.bf16_operands) return "rounds f32 to bf16; bf16_operands allows it";
  constexpr std::int64_t kPair = 2 * kTileSide;  // and kTileDepth
  if (args.k.dim(3) % kPair != 0 || args.v.dim(3) % kPair != 0) return "K or V is not a multiple of 32";
  return {};
}

std::size_t tile_rule_workspace(const ChunkGatedDeltaRuleArgs& args, const Stream& stream) {
  return worker_bytes(floats(args), stream);
}

void run_tile_rule(const ChunkGatedDeltaRuleArgs& args, Workspace memory, const Stream& stream) {
  for_each_head(args, memory, floats(args), stream,
                [](const ChunkHead& head, const Arena& scratch) { HeadPrefill(head, scratch).run(); });
}

}  // namespace thalweg::cpu
