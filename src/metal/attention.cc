// Launches of attention: split over the context for few new tokens, tiles of rows for many.

#include <algorithm>
#include <cmath>

#include "core/arena.h"
#include "metal/kernels.h"
#include "metal/layers.h"
#include "metal/tuning.h"

namespace thalweg::metal {
namespace {

// A part of the context that is worth a threadgroup, and how many parts there are at most.
constexpr std::int64_t kSpan = 256;
constexpr std::int64_t kMostSplits = 128;
// New tokens of a sequence, on average, up to which the context is split.
constexpr std::int64_t kFewTokens = 4;

std::int64_t ratio_of(const AttentionArgs& args) { return args.q.dim(1) / args.k_cache.dim(2); }

std::int64_t capacity_of(const AttentionArgs& args) {
  return args.k_cache.dim(1) * (args.pages.defined() ? args.pages.dim(1) : 1);
}
// From the cache's capacity: no host code sees the lengths.
std::int64_t span_of(const AttentionArgs& args) {
  return std::max(kSpan, static_cast<std::int64_t>(ceil_div(capacity_of(args), kMostSplits)));
}
std::int64_t splits_of(const AttentionArgs& args) {
  return std::max<std::int64_t>(ceil_div(capacity_of(args), span_of(args)), 1);
}

struct SplitMemory {
  float* parts;   // [T,HQ,splits,D]
  float* scales;  // [T,HQ,splits,2]
  std::int64_t count;

  SplitMemory(const AttentionArgs& args, Arena& arena)
      : parts(nullptr), scales(nullptr), count(args.q.dim(0) * args.q.dim(1) * splits_of(args)) {
    if (splits_of(args) == 1) return;
    parts = arena.take<float>(count * args.q.dim(2));
    scales = arena.take<float>(count * 2);
  }
};

std::size_t split_workspace(const AttentionArgs& args, const Stream&) {
  Arena arena;
  const SplitMemory counted(args, arena);
  return arena.used();
}

AttentionParameters parameters_of(const AttentionArgs& args, std::int64_t most_heads) {
  AttentionParameters p{};
  p.cache = cache_parameters(args.lengths, args.q.dim(0), args.pages, args.k_cache, args.v_cache);
  p.heads = static_cast<std::int32_t>(args.q.dim(1));
  p.key_heads = static_cast<std::int32_t>(args.k_cache.dim(2));
  p.rows_heads = static_cast<std::int32_t>(std::min(ratio_of(args), most_heads));
  p.groups = static_cast<std::int32_t>(ceil_div(ratio_of(args), p.rows_heads));
  p.rows_tokens = kAttentionRows / p.rows_heads;
  p.span = static_cast<std::int32_t>(span_of(args));
  p.splits = static_cast<std::int32_t>(splits_of(args));
  p.scale = args.scale.value_or(1.0F / std::sqrt(static_cast<float>(args.q.dim(2))));
  p.q = rows_view(args.q);
  p.gate = rows_view(args.gate);
  p.o = rows_view(args.o);
  return p;
}

void add_constants(Launch& launch, const AttentionArgs& args) {
  launch.constant("kWidth", args.q.dim(2)).constant("kType", args.q.dtype).constant("kOutType", args.o.dtype);
  launch.constant("kCacheType", args.k_cache.dtype).constant("kHasOther", args.gate.defined());
  launch.constant("kIndexed", args.slots.defined()).constant("kPaged", args.pages.defined());
}

Launch rows_launch(std::string_view kernel, const AttentionArgs& args, const AttentionParameters& p) {
  Launch launch;
  launch.kernel = kernel;
  launch.set(p).add(args.q).add(args.k_cache).add(args.v_cache).add(args.cu_seqlens).add(args.lengths);
  launch.add(args.slots).add(args.pages).add(args.gate).add(args.o);
  add_constants(launch, args);
  return launch;
}

void run_split(const AttentionArgs& args, Workspace workspace, const Stream& stream) {
  if (args.o.size() == 0) return;
  Arena arena(workspace);
  const SplitMemory memory(args, arena);
  const AttentionParameters p = parameters_of(args, kSplitHeads);
  const Buffer parts = buffer_of(memory.parts, memory.count * args.q.dim(2));
  const Buffer scales = buffer_of(memory.scales, memory.count * 2);
  Launch launch = rows_launch("attention_split", args, p);
  launch.add(parts).add(scales).constant("kSplit", p.splits > 1);
  launch.threads = 32 * kSplitSimdgroups;
  const std::int64_t floats = std::int64_t{kSplitSimdgroups} * kSplitHeads * (args.q.dim(2) + 2);
  launch.threadgroup_bytes = static_cast<std::size_t>((floats + 3) / 4 * 4) * sizeof(float);
  launch.grid = {static_cast<std::uint32_t>(p.splits), static_cast<std::uint32_t>(p.key_heads * p.groups),
                 static_cast<std::uint32_t>(args.q.dim(0))};
  const auto encoder = make_encoder(args.kName, stream);
  encoder->launch(launch);
  if (p.splits == 1) return;
  Launch join;
  join.kernel = "attention_join";
  join.set(p).add(parts).add(scales).add(args.cu_seqlens).add(args.lengths).add(args.slots).add(args.pages);
  join.add(args.gate).add(args.o);
  add_constants(join, args);
  join.threads = 32 * ceil_div(args.q.dim(2), 32);
  join.grid = {static_cast<std::uint32_t>(p.heads), static_cast<std::uint32_t>(args.q.dim(0)), 1};
  join.after_previous = true;
  encoder->launch(join);
}

void run_tiles(const AttentionArgs& args, Workspace, const Stream& stream) {
  if (args.o.size() == 0) return;
  const AttentionParameters p = parameters_of(args, kAttentionRows);
  Launch launch = rows_launch("attention_tiles", args, p);
  launch.threads = 256;
  const std::int64_t width = (args.q.dim(2) + 15) / 16 * 16;
  launch.threadgroup_bytes =
      static_cast<std::size_t>(2 * kAttentionRows * kAttentionKeys + 12 * kTileFloats + kAttentionKeys * width) *
      sizeof(float);
  // What the sequences could need at the most.
  const std::int64_t tokens = args.q.dim(0);
  const auto blocks = static_cast<std::uint32_t>(std::min(tokens, tokens / p.rows_tokens + args.lengths.dim(0)));
  launch.grid = {blocks, static_cast<std::uint32_t>(p.key_heads * p.groups), 1};
  make_encoder(args.kName, stream)->launch(launch);
}

std::string supports(const AttentionArgs& args, const Stream&) {
  return args.q.dim(2) <= kMaxHeadSize ? "" : "needs heads of at most 256 elements";
}

// Only the order matters.
bool is_few(const AttentionArgs& args, const Stream& stream) {
  if (stream.rows != RowHint::kByCount) return stream.rows == RowHint::kFew;
  return args.q.dim(0) <= kFewTokens * args.lengths.dim(0);
}
double split_cost(const AttentionArgs& args, const Stream& stream) {
  return is_few(args, stream) ? 1.0 : tuning::kAgainstHint;
}
double tiles_cost(const AttentionArgs& args, const Stream& stream) {
  return is_few(args, stream) ? tuning::kAgainstHint : 1.0;
}

constexpr Kernel<AttentionArgs> kAttention[] = {
    {.name = "split", .supports = supports, .workspace = split_workspace, .run = run_split, .cost = split_cost},
    {.name = "tiles",
     .supports = supports,
     .workspace = no_workspace<AttentionArgs>,
     .run = run_tiles,
     .cost = tiles_cost}};

}  // namespace

KernelList<AttentionArgs> attention_kernels() { return kAttention; }

}  // namespace thalweg::metal
