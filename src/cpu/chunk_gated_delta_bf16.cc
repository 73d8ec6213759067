// Prefill in chunks of 64 tokens with the six products of chunk_gated_delta_rule.cc in bf16: their operands are
// rounded, everything else is f32, the state too, and the triangular solve within 32 tokens. The state is kept as
// [V,K]. Chunks that are not full are filled with zeros.

#include <algorithm>
#include <cmath>
#include <string>

#include "cpu/bf16_ops.h"
#include "cpu/chunk_head.h"

namespace thalweg::cpu {
namespace {

constexpr std::int64_t kChunkTiles = kChunk / kTileSide;
constexpr std::int64_t kChunkSteps = kChunk / kTileDepth;
constexpr std::int64_t kPairedStride = kChunkSteps * kTileValues;  // of the tiles of 16 columns of a matrix [C,.]
constexpr std::int64_t kTurnedRow = 2 * kBlockTiles * kTileSide;   // values between rows that Bf16Ops::transpose writes
static_assert(kTurnedRow >= kChunk);

struct Buffers {
  Buffers(Arena& arena, std::int64_t ks, std::int64_t vs)
      : state(arena.take<float>(vs * ks)),
        q(arena.take<float>(kChunk * ks)),
        k(arena.take<float>(kChunk * ks)),
        v(arena.take<float>(kChunk * vs)),
        o(arena.take<float>(kChunk * vs)),
        decay(arena.take<float>(kChunk * kChunk)),
        lower(arena.take<float>(kChunk * kChunk)),
        attention(arena.take<float>(kChunk * kChunk)),
        inverse(arena.take<float>(kTileSums)),
        solved(arena.take<float>(kTileSide * vs)),
        g(arena.take<float>(kChunk)),
        beta(arena.take<float>(kChunk)),
        staging(arena.take<float>(state_staging(vs, ks))),
        q_rows(arena.take<std::uint16_t>(kChunk * ks)),
        k_rows(arena.take<std::uint16_t>(kChunk * ks)),
        k_tiles(arena.take<std::uint16_t>(kChunk * ks)),
        k_pairs(arena.take<std::uint16_t>(kChunk * ks)),
        v_pairs(arena.take<std::uint16_t>(kChunk * vs)),
        v_rows(arena.take<std::uint16_t>(kTurnedRow * vs)),
        attention_rows(arena.take<std::uint16_t>(kChunk * kChunk)),
        lower_rows(arena.take<std::uint16_t>(kChunk * kChunk)),
        state_tiles(arena.take<std::uint16_t>(vs * ks)) {}

  float* state;      // S [V,K]
  float* q;          // [C,K]
  float* k;          // [C,K]
  float* v;          // [C,V], then V'
  float* o;          // [C,V]
  float* decay;      // D [C,C], 0 above the diagonal
  float* lower;      // L [C,C]
  float* attention;  // P [C,C]
  float* inverse;    // of a diagonal block of I + L
  float* solved;     // 16 rows of V'
  float* g;          // [C], cumulative
  float* beta;       // [C]
  float* staging;
  std::uint16_t* q_rows;          // q [C,K]
  std::uint16_t* k_rows;          // k [C,K]
  std::uint16_t* k_tiles;         // k as the right side of products along K
  std::uint16_t* k_pairs;         // k as the right side of products along tokens
  std::uint16_t* v_pairs;         // V', the same
  std::uint16_t* v_rows;          // exp(G_last - G) V' [V,C], rows kTurnedRow apart
  std::uint16_t* attention_rows;  // P [C,C]
  std::uint16_t* lower_rows;      // -L [C,C]
  std::uint16_t* state_tiles;     // S as the right side of products along K
};

std::int64_t floats(const ChunkGatedDeltaRuleArgs& args) {
  Arena arena;
  const std::int64_t ks = args.k.dim(3);
  const std::int64_t vs = args.v.dim(3);
  const Buffers counted(arena, ks, vs);
  return std::max(static_cast<std::int64_t>(arena.used() / sizeof(float)), ChunkHead::short_floats(vs, ks));
}

class HeadPrefill {
 public:
  HeadPrefill(const ChunkHead& head, Arena scratch) : head_(head), m_(scratch, head.ks, head.vs) {}

  void run() const {
    head_.load(Orientation::kVK, m_.state, m_.staging);
    head_.for_each_chunk([&](const Chunk& chunk, std::int64_t at) {
      head_.store_checkpoint(at, Orientation::kVK, m_.state, m_.staging);
      prefetch(head_.args.o, chunk, 0, head_.h);
      head_.load_inputs(chunk, m_.q, m_.k, m_.v, m_.g, m_.beta, m_.staging);
      fill_up(chunk.length);
      prefetch(head_.args.q, chunk, kChunk, head_.kh);
      prefetch(head_.args.k, chunk, kChunk, head_.kh);
      prefetch(head_.args.v, chunk, kChunk, head_.h);
      round_inputs();
      form_matrices();
      solve_values();
      store_output(chunk);
      advance_state();
    });
    head_.store(Orientation::kVK, m_.state, m_.staging);
  }

 private:
  // A head's rows of a chunk, or of the next one: they are far apart in memory, so that the hardware does not.
  template <class AnyTensor>
  void prefetch(const AnyTensor& tensor, const Chunk& chunk, std::int64_t ahead, std::int64_t head) const {
    constexpr std::int64_t kLine = 64;
    const std::int64_t bytes = bytes_of(tensor.dtype, tensor.dim(3));
    const std::int64_t begin = chunk.begin + ahead;
    const std::int64_t end = std::min(begin + kChunk, head_.sequences.begin(head_.n) + head_.sequences.length(head_.n));
    for (std::int64_t i = begin; i < end; ++i) {
      const auto* row = static_cast<const char*>(tensor.row(chunk.row, i, head));
      for (std::int64_t at = 0; at < bytes; at += kLine) __builtin_prefetch(row + at, 0, 2);
    }
  }

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
    bf16_.round(m_.q, kChunk * ks_, m_.q_rows);
    bf16_.round(m_.k, kChunk * ks_, m_.k_rows);
    pack(m_.k, kChunk, m_.k_tiles);
    pack(m_.state, vs_, m_.state_tiles);
    pair(m_.k, 0, kChunk, ks_, m_.k_pairs);
  }
  // Rows [n,K] as the right side of products along K.
  void pack(const float* rows, std::int64_t n, std::uint16_t* to) const {
    for (std::int64_t i = 0; i < n; i += kTileSide) {
      const void* sixteen[kTileSide];
      for (std::int64_t r = 0; r < kTileSide; ++r) sixteen[r] = rows + (i + r) * ks_;
      bf16_.pack(DType::kF32, sixteen, ks_, to + i * ks_);
    }
  }
  // Rows `begin` to `end` of [C,n] as the right side of products along tokens.
  void pair(const float* rows, std::int64_t begin, std::int64_t end, std::int64_t n, std::uint16_t* to) const {
    for (std::int64_t i = begin; i < end; i += 2) {
      bf16_.pair_rows(rows + i * n, rows + (i + 1) * n, n, to + i * kTileSide, kPairedStride);
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
    bf16_.multiply(product);
  }
  // The lower half of [C,K] times the transpose of k. What is right of it stays as it is, and is not read.
  void multiply_lower(const std::uint16_t* rows, float* c) const {
    for (std::int64_t begin = 0; begin < kChunkTiles; begin += 2) {
      multiply_along_keys(rows, begin, begin + 2, m_.k_tiles, begin + 2, c, kChunk);
    }
  }

  // L and P.
  void form_matrices() const {
    std::fill_n(m_.decay, kChunk * kChunk, 1.0F);
    for (std::int64_t i = 0; i < kChunk; ++i) {
      float* const row = m_.decay + i * kChunk;
      vec_.multiply_by_decay(m_.g[i], m_.g, round_up(i + 1, kTileSide), row);
      std::fill(row + i + 1, row + kChunk, 0.0F);
    }
    multiply_lower(m_.q_rows, m_.attention);
    vec_.multiply(m_.attention, m_.decay, kChunk * kChunk, m_.attention);
    bf16_.round(m_.attention, kChunk * kChunk, m_.attention_rows);
    multiply_lower(m_.k_rows, m_.lower);
    vec_.multiply(m_.lower, m_.decay, kChunk * kChunk, m_.lower);
    for (std::int64_t i = 0; i < kChunk; ++i) {
      vec_.scale(-m_.beta[i], m_.lower + i * kChunk, kChunk, m_.lower + i * kChunk);
    }
    bf16_.round(m_.lower, kChunk * kChunk, m_.lower_rows);
  }

  // c [C or fewer, V] (+)= rows `begin` to `end`, in tiles, of a matrix [C,C] times the first `tokens` tokens of V'.
  void multiply_along_tokens(const std::uint16_t* rows, std::int64_t begin, std::int64_t end, std::int64_t tokens,
                             float* c) const {
    TileProduct product{};
    product.a = rows + begin * kTileSide * kChunk;
    product.a_tiles = end - begin;
    product.a_row = kChunk;
    product.b = m_.v_pairs;
    product.b_tiles = vs_ / kTileSide;
    product.b_stride = kPairedStride;
    product.steps = tokens / kTileDepth;
    product.c = c + begin * kTileSide * vs_;
    product.c_row = vs_;
    product.accumulate = true;
    bf16_.multiply(product);
  }

  // v becomes V'; o holds k S meanwhile. The lower half of L takes V' in bf16, as P does; within halves all is f32.
  void solve_values() const {
    multiply_along_keys(m_.k_rows, 0, kChunkTiles, m_.state_tiles, vs_ / kTileSide, m_.o, vs_);
    for (std::int64_t i = 0; i < kChunk; ++i) {
      vec_.axpy(-std::exp(m_.g[i]), m_.o + i * vs_, vs_, m_.v + i * vs_);
      vec_.scale(m_.beta[i], m_.v + i * vs_, vs_, m_.v + i * vs_);
    }
    solve_half(0);
    pair(m_.v, 0, kTileDepth, vs_, m_.v_pairs);
    multiply_along_tokens(m_.lower_rows, kChunkTiles / 2, kChunkTiles, kTileDepth, m_.v);
    solve_half(kTileDepth);
    pair(m_.v, kTileDepth, kChunk, vs_, m_.v_pairs);
  }
  // Two blocks of 16 tokens, forward, by the inverses of the diagonal blocks.
  void solve_half(std::int64_t begin) const {
    for (std::int64_t at = begin; at < begin + kTileDepth; at += kTileSide) {
      float* const v = m_.v + at * vs_;
      const float* const negated = m_.lower + at * kChunk;
      if (at > begin) {
        vec_.gemm(kTileSide, vs_, kTileSide, negated + begin, kChunk, 1, m_.v + begin * vs_, vs_, v, vs_, true);
      }
      invert_block(negated + at);
      std::copy_n(v, kTileSide * vs_, m_.solved);
      vec_.gemm(kTileSide, vs_, kTileSide, m_.inverse, kTileSide, 1, m_.solved, vs_, v, vs_, false);
    }
  }
  // (I + L)^-1 of a diagonal block, from -L.
  void invert_block(const float* negated) const {
    for (std::int64_t i = 0; i < kTileSide; ++i) {
      float* const row = m_.inverse + i * kTileSide;
      std::fill_n(row, kTileSide, 0.0F);
      for (std::int64_t j = 0; j < i; ++j) {
        const float factor = negated[i * kChunk + j];
        for (std::int64_t n = 0; n < kTileSide; ++n) row[n] += factor * m_.inverse[j * kTileSide + n];
      }
      row[i] = 1.0F;
    }
  }

  void store_output(const Chunk& chunk) const {
    multiply_along_keys(m_.q_rows, 0, kChunkTiles, m_.state_tiles, vs_ / kTileSide, m_.o, vs_);
    for (std::int64_t i = 0; i < kChunk; ++i) {
      vec_.scale(std::exp(m_.g[i]), m_.o + i * vs_, vs_, m_.o + i * vs_);
    }
    for (std::int64_t begin = 0; begin < kChunkTiles; begin += 2) {  // what is above the diagonal counts 0
      multiply_along_tokens(m_.attention_rows, begin, begin + 2, (begin + 2) * kTileSide, m_.o);
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
    // Words of two tokens are transposed, 16 x 16.
    pair(m_.v, 0, kChunk, vs_, m_.v_pairs);
    for (std::int64_t i = 0; i < vs_ / kTileSide; ++i) {
      bf16_.transpose(m_.v_pairs + i * kPairedStride, kChunkSteps, m_.v_rows + i * kTileSide * kTurnedRow);
    }
    vec_.scale(std::exp(last), m_.state, vs_ * ks_, m_.state);
    TileProduct product{};
    product.a = m_.v_rows;
    product.a_tiles = vs_ / kTileSide;
    product.a_row = kTurnedRow;
    product.b = m_.k_pairs;
    product.b_tiles = ks_ / kTileSide;
    product.b_stride = kPairedStride;
    product.steps = kChunkSteps;
    product.c = m_.state;
    product.c_row = ks_;
    product.accumulate = true;
    bf16_.multiply(product);
  }

  const VectorOps& vec_ = vector_ops();
  const Bf16Ops& bf16_ = *bf16_ops();
  const ChunkHead& head_;
  const std::int64_t ks_ = head_.ks;
  const std::int64_t vs_ = head_.vs;
  const Buffers m_;
};

}  // namespace

std::string bf16_rule_reason(const ChunkGatedDeltaRuleArgs& args, const Stream&) {
  if (bf16_ops() == nullptr) return "no AMX, and no bf16 in AVX-512";
  const DType dtype = args.q.dtype;
  if (dtype == DType::kF16) return "bf16 would round f16";
  if (dtype == DType::kF32 && !args.bf16_operands) return "rounds f32 to bf16; bf16_operands allows it";
  constexpr std::int64_t kPair = 2 * kTileSide;  // and kTileDepth
  if (args.k.dim(3) % kPair != 0 || args.v.dim(3) % kPair != 0) return "K or V is not a multiple of 32";
  return {};
}

std::size_t bf16_rule_workspace(const ChunkGatedDeltaRuleArgs& args, const Stream& stream) {
  return worker_bytes(floats(args), stream);
}

void run_bf16_rule(const ChunkGatedDeltaRuleArgs& args, Workspace memory, const Stream& stream) {
  for_each_head(args, memory, floats(args), stream,
                [](const ChunkHead& head, const Arena& scratch) { HeadPrefill(head, scratch).run(); });
}

}  // namespace thalweg::cpu
