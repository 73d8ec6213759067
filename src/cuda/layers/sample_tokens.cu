// sample_tokens. A row is cut into segments for as many blocks as the device has room for; every sum is of integers, so
// that equal calls give equal tokens. Kernels, one after the other:
//
//   find_largest      a block per segment: the likeliest token; clears histograms, writes keys after penalty and mask
//   finish_greedy     a block per row, if no row is drawn; else
//   search_keys<0>    the largest weight is known: weights, histogram of all keys
//   search_keys<1,2>  top-k's cut: what the histogram before says, and the next
//   search_keys<3,4>  top-p's cut
//   sum_segments      weights of what is kept, by segment
//   draw_token        a block per row: the segment drawn, and in it the token
//
// Rows that are absent or greedy end in search_keys<0>.

#include <algorithm>

#include "core/arena.h"
#include "cuda/common/pdl.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/layers/sample_search.h"

namespace thalweg::cu {
namespace {

// search_keys<0..4>, sum_segments
constexpr int kSearches = 6;

struct Memory {
  U64* largest = nullptr;           // [N,segments] ranks
  U64* mass = nullptr;              // [N,segments] of keys above the cut
  std::uint32_t* ties = nullptr;    // [N,segments] tokens at the cut
  Histogram* histograms = nullptr;  // [N,kHistograms]
  Search* searches = nullptr;       // [kSearches,N]
  std::uint32_t* keys = nullptr;    // [N,V]
  int rows = 0;

  __device__ const Search& search(int stage, int n) const { return searches[stage * rows + n]; }
  __device__ Search& search(int stage, int n) { return searches[stage * rows + n]; }
  __device__ Histogram& histogram(int i, int n) const { return histograms[n * kHistograms + i]; }
};

// Marks which tokens of a segment are penalized. Returns whether any may be.
__device__ bool mark_recent(const SampleRows& rows, int n, std::int64_t slot, int first, std::uint32_t* marks) {
  if (rows.repeat_penalty == nullptr || rows.repeat_penalty[n] == 1.0F) return false;
  const auto length = static_cast<int>(min(static_cast<std::int64_t>(max(rows.lengths[n], 0)), rows.history_size));
  const int last = rows.repeat_last != nullptr ? rows.repeat_last[n] : 64;
  const int recent = last < 0 ? length : min(length, last);
  if (recent == 0) return false;
  for (int i = static_cast<int>(threadIdx.x); i < kSegment / 32; i += kRowThreads) marks[i] = 0;
  __syncthreads();
  const std::int32_t* tokens = rows.history + slot * rows.history_stride + (length - recent);
  for (int i = static_cast<int>(threadIdx.x); i < recent; i += kRowThreads) {
    const std::uint32_t at = static_cast<std::uint32_t>(tokens[i]) - static_cast<std::uint32_t>(first);
    if (at < kSegment) atomicOr(&marks[at / 32], 1U << at % 32);
  }
  __syncthreads();
  return true;
}

__global__ void __launch_bounds__(kRowThreads) find_largest(const SampleRows rows, const Memory memory) {
  __shared__ std::uint32_t marks[kSegment / 32];
  const int thread = static_cast<int>(threadIdx.x);
  const int n = static_cast<int>(blockIdx.x) / rows.segments;
  const int segment = static_cast<int>(blockIdx.x) % rows.segments;
  pdl_trigger_and_wait();
  if (memory.histograms != nullptr) {
    constexpr int kWords = static_cast<int>(kHistograms * sizeof(Histogram) / sizeof(uint4));
    auto* words = reinterpret_cast<uint4*>(&memory.histogram(0, n));
    for (int i = segment * kRowThreads + thread; i < kWords; i += rows.segments * kRowThreads) words[i] = {0, 0, 0, 0};
  }
  const std::int64_t slot = rows.slot(n);
  if (slot < 0) return;
  const int first = segment * kSegment;
  const int end = rows.segment_end(segment);
  const bool penalized = mark_recent(rows, n, slot, first, marks);
  const float penalty = penalized ? rows.repeat_penalty[n] : 1.0F;
  const float* logits = rows.row(n);
  float values[kSegmentLoads];
#pragma unroll
  for (int i = 0; i < kSegmentLoads; ++i) {
    const int token = first + i * kRowThreads + thread;
    values[i] = token < end ? logits[token] : 0.0F;
  }
  U64 largest = 0;
#pragma unroll
  for (int i = 0; i < kSegmentLoads; ++i) {
    const int token = first + i * kRowThreads + thread;
    if (token >= end) break;
    float value = values[i];
    U64 rank = rank_of(value, token);  // of no number even if the penalty makes it one
    const int at = token - first;
    if (penalized && rank != kNoNumber && (marks[at / 32] >> at % 32 & 1U) != 0) {
      value = value > 0.0F ? __fdiv_rn(value, penalty) : __fmul_rn(value, penalty);
      rank = rank_of(value, token);
    }
    if (rank != kNoNumber && !rows.is_allowed(n, token)) {
      value = __uint_as_float(0xFF800000U);  // -infinity
      rank = rank_of(value, token);
    }
    if (rows.keys != nullptr) rows.row_keys(n)[token] = key_of(value);
    largest = max(largest, rank);
  }
  largest = block_max(largest);
  if (thread == 0) memory.largest[static_cast<std::int64_t>(n) * rows.segments + segment] = largest;
}

// The largest rank of a row.
__device__ U64 largest_of(const SampleRows& rows, const Memory& memory, int n) {
  const U64* ranks = memory.largest + static_cast<std::int64_t>(n) * rows.segments;
  U64 largest = 0;
  for (int i = static_cast<int>(threadIdx.x); i < rows.segments; i += kRowThreads) largest = max(largest, ranks[i]);
  return block_max(largest);
}

__global__ void __launch_bounds__(kRowThreads) finish_greedy(const SampleRows rows, const Memory memory) {
  const auto n = static_cast<int>(blockIdx.x);
  pdl_trigger_and_wait();
  U64 largest = 0;
  finish_undrawn(rows, n, threadIdx.x == 0, largest, [&] { return largest_of(rows, memory, n); });
}

// What the kernels before a stage have found for a row. `writes`: this thread is the one that writes the token of a row
// that is not drawn.
template <int kStage>
__device__ Search search_of(const SampleRows& rows, const Memory& memory, int n, bool writes) {
  Search search;
  if (kStage == 0) {
    U64 largest = 0;
    search.drawn = !finish_undrawn(rows, n, writes, largest, [&] { return largest_of(rows, memory, n); });
    search.largest_key = key_of_rank(largest);
    search.searching = search.drawn;
    return search;
  }
  // Stages 1 and 2 are launched with top_k, 3 and 4 with top_p.
  constexpr int kBeforeTopP = 3;
  const bool top_k = rows.top_k != nullptr;
  const bool top_p = rows.top_p != nullptr;
  int before = kStage - 1;
  if (kStage > kBeforeTopP + 1 && !top_p) before = kBeforeTopP - 1;
  if (before == kBeforeTopP - 1 && !top_k) before = 0;
  search = memory.search(before, n);
  if (!search.drawn) return search;
  if (kStage == 1) begin_top_k(rows, n, memory.histogram(0, n), search);
  if (kStage == 2 && search.searching) search_in(memory.histogram(1, n), By::kCount, 11, search);
  if (kStage == kBeforeTopP || (kStage == kSearches - 1 && !top_p)) {
    if (top_k) end_top_k(rows, n, memory.histogram(2, n), search);
  }
  if (kStage == kBeforeTopP) begin_top_p(rows, n, memory.histogram(0, n), search);
  if (kStage == 4 && search.searching) search_in(memory.histogram(3, n), By::kMass, 11, search);
  if (kStage == kSearches - 1 && top_p) end_top_p(rows, n, memory.histogram(4, n), search);
  return search;
}

// Blocks of `rows.run` segments.
template <int kStage>
__global__ void __launch_bounds__(kRowThreads) search_keys(const SampleRows rows, Memory memory) {
  __shared__ BlockHistogram histogram;
  const int n = static_cast<int>(blockIdx.x) / rows.runs;
  const int run = static_cast<int>(blockIdx.x) % rows.runs;
  const bool writes = run == 0 && threadIdx.x == 0;
  pdl_trigger_and_wait();
  const Search search = search_of<kStage>(rows, memory, n, writes);
  if (writes) memory.search(kStage, n) = search;
  if (!search.searching) return;
  histogram.clear();
  constexpr int kLevel = kStage == 0 ? 0 : (kStage - 1) % 2 + 1;
  const int first = run * rows.run;
  count_keys<kLevel>(rows, n, first, min(rows.segments, first + rows.run), search, histogram);
  histogram.add_to(memory.histogram(kStage, n));
}

__global__ void __launch_bounds__(kRowThreads) sum_segments(const SampleRows rows, Memory memory) {
  const int n = static_cast<int>(blockIdx.x) / rows.runs;
  const int run = static_cast<int>(blockIdx.x) % rows.runs;
  const bool writes = run == 0 && threadIdx.x == 0;
  pdl_trigger_and_wait();
  const Search search = search_of<kSearches - 1>(rows, memory, n, writes);
  if (writes) memory.search(kSearches - 1, n) = search;
  if (!search.drawn) return;
  const Weights weights(rows, n, search.largest_key);
  const int last = min(rows.segments, (run + 1) * rows.run);
  for (int segment = run * rows.run; segment < last; ++segment) {
    std::uint32_t keys[kSegmentLoads];
    load_keys(rows, n, segment, keys);
    Tally own{0, 0};
#pragma unroll
    for (const std::uint32_t key : keys) {
      if (key > search.cut.key) own.mass += weights.kept(key);
      if (key == search.cut.key) ++own.count;
    }
    Tally all;
    block_scan(own, all);
    if (threadIdx.x == 0) {
      const std::int64_t at = static_cast<std::int64_t>(n) * rows.segments + segment;
      memory.mass[at] = all.mass;
      memory.ties[at] = all.count;
    }
  }
}

// Of `ties` tokens at the cut, those that are among the first that it keeps.
__device__ std::uint32_t kept_ties(const Cut& cut, std::uint32_t before, std::uint32_t ties) {
  return before < cut.ties ? min(ties, cut.ties - before) : 0;
}

// Where the draw falls.
struct Place {
  int segment;
  std::uint32_t ties_before;
  U64 left;  // weight from the segment's start to the draw
};

__device__ Place find_segment(const SampleRows& rows, const Memory& memory, int n, const Cut& cut, U64 tie_weight) {
  __shared__ Place place;
  const std::int64_t row = static_cast<std::int64_t>(n) * rows.segments;
  const int share = (rows.segments + kRowThreads - 1) / kRowThreads;
  const int first = min(rows.segments, share * static_cast<int>(threadIdx.x));
  const int last = min(rows.segments, first + share);
  Tally ties{0, 0};
  for (int i = first; i < last; ++i) ties.count += memory.ties[row + i];
  Tally unused;
  const std::uint32_t ties_before = block_scan(ties, unused).count;
  const auto for_each_segment = [&](auto use) {
    std::uint32_t before = ties_before;
    for (int i = first; i < last; ++i) {
      const std::uint32_t here = memory.ties[row + i];
      use(i, before, memory.mass[row + i] + kept_ties(cut, before, here) * tie_weight);
      before += here;
    }
  };
  Tally own{0, 0};
  for_each_segment([&](int, std::uint32_t, U64 mass) { own.mass += mass; });
  Tally total;
  U64 before = block_scan(own, total).mass;
  // The draw, a fraction of 2^53, of the total.
  const U64 bits = draw_bits(rows, n);
  const U64 drawn = __umul64hi(bits, total.mass) << 11 | bits * total.mass >> 53;
  for_each_segment([&](int segment, std::uint32_t ties_of_row, U64 mass) {
    if (before <= drawn && drawn - before < mass) place = {segment, ties_of_row, drawn - before};
    before += mass;
  });
  __syncthreads();
  return place;
}

__global__ void __launch_bounds__(kRowThreads) draw_token(const SampleRows rows, const Memory memory) {
  const auto n = static_cast<int>(blockIdx.x);
  pdl_trigger_and_wait();
  const Search search = memory.search(kSearches - 1, n);
  if (!search.drawn) return;
  const Weights weights(rows, n, search.largest_key);
  const U64 tie_weight = search.cut.ties > 0 ? weights.kept(search.cut.key) : 0;
  const Place place = find_segment(rows, memory, n, search.cut, tie_weight);
  // A thread has neighbors here, in the order of ids.
  const int first = place.segment * kSegment + static_cast<int>(threadIdx.x) * kSegmentLoads;
  const int end = rows.segment_end(place.segment);
  U64 masses[kSegmentLoads];
  Tally own{0, 0};
#pragma unroll
  for (int i = 0; i < kSegmentLoads; ++i) {
    const std::uint32_t key = first + i < end ? rows.key(n, first + i) : 0;
    const bool tie = key != 0 && key == search.cut.key;
    masses[i] = key > search.cut.key ? weights.kept(key) : 0;
    own.count += tie ? 1 : 0;
    if (tie) masses[i] = kNoNumber;
  }
  Tally unused;
  std::uint32_t ties = place.ties_before + block_scan(own, unused).count;
#pragma unroll
  for (U64& mass : masses) {
    if (mass == kNoNumber) mass = kept_ties(search.cut, ties++, 1) * tie_weight;
    own.mass += mass;
  }
  own.count = 0;
  U64 before = block_scan(own, unused).mass;
#pragma unroll
  for (int i = 0; i < kSegmentLoads; ++i) {
    if (before <= place.left && place.left - before < masses[i]) rows.tokens[n] = first + i;
    before += masses[i];
  }
}

// ---- Host

// Settings other than the penalty matter only to rows that are drawn.
bool draws(const SampleTokensArgs& args) { return args.temperature.defined(); }

int segments_of(const SampleTokensArgs& args) {
  return static_cast<int>((args.logits.dim(1) + kSegment - 1) / kSegment);
}

Memory take_memory(const SampleTokensArgs& args, Arena& arena) {
  Memory memory;
  const std::int64_t rows = args.logits.dim(0);
  memory.rows = static_cast<int>(rows);
  memory.largest = arena.take<U64>(rows * segments_of(args));
  if (!draws(args)) return memory;
  memory.mass = arena.take<U64>(rows * segments_of(args));
  memory.ties = arena.take<std::uint32_t>(rows * segments_of(args));
  memory.histograms = arena.take<Histogram>(rows * kHistograms);
  memory.searches = arena.take<Search>(rows * kSearches);
  if (args.repeat_penalty.defined() || args.allowed.defined())
    memory.keys = arena.take<std::uint32_t>(rows * args.logits.dim(1));
  return memory;
}

std::string supports(const SampleTokensArgs& args, const Stream&) {
  if (args.logits.dim(1) > kMostLogits) return "takes at most " + std::to_string(kMostLogits) + " logits of a sequence";
  if (args.logits.dim(0) * segments_of(args) > 0x7FFFFFFF) return "takes no more sequences";
  return {};
}

std::size_t workspace_bytes(const SampleTokensArgs& args, const Stream&) {
  Arena arena;
  take_memory(args, arena);
  return arena.used();
}

template <class T>
const T* data_of(const ConstTensor& tensor) {
  return static_cast<const T*>(tensor.data);
}

SampleRows rows_of(const SampleTokensArgs& args, const Memory& memory, int multiprocessors) {
  SampleRows rows;
  rows.logits = data_of<float>(args.logits);
  rows.logits_stride = args.logits.stride(0);
  rows.lengths = data_of<std::int32_t>(args.lengths);
  if (args.history.defined()) {
    rows.history = data_of<std::int32_t>(args.history);
    rows.history_stride = args.history.stride(0);
    rows.history_slots = args.history.dim(0);
    rows.history_size = args.history.dim(1);
  }
  rows.slots = data_of<std::int32_t>(args.slots);
  rows.temperature = data_of<float>(args.temperature);
  rows.top_k = data_of<std::int32_t>(args.top_k);
  rows.top_p = data_of<float>(args.top_p);
  rows.min_p = data_of<float>(args.min_p);
  rows.repeat_penalty = data_of<float>(args.repeat_penalty);
  rows.repeat_last = data_of<std::int32_t>(args.repeat_last);
  rows.seed = data_of<std::uint32_t>(args.seed);
  rows.seed_stride = args.seed.stride(0);
  rows.allowed = data_of<std::uint32_t>(args.allowed);
  rows.allowed_stride = args.allowed.stride(0);
  rows.tokens = static_cast<std::int32_t*>(args.tokens.data);
  rows.fault = static_cast<std::int32_t*>(args.fault.data);
  rows.keys = memory.keys;
  rows.vocabulary = static_cast<int>(args.logits.dim(1));
  rows.segments = segments_of(args);
  // Two blocks for each multiprocessor: more would clear and read histograms for fewer keys.
  const auto sequences = static_cast<int>(args.logits.dim(0));
  const int wanted = std::clamp((2 * multiprocessors + sequences - 1) / sequences, 1, rows.segments);
  rows.run = (rows.segments + wanted - 1) / wanted;
  rows.runs = (rows.segments + rows.run - 1) / rows.run;
  return rows;
}

void run(const SampleTokensArgs& args, Workspace workspace, const Stream& stream) {
  if (args.logits.dim(0) == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DeviceProperties& device = properties(stream.device.index);
  Arena arena(workspace);
  const Memory memory = take_memory(args, arena);
  const SampleRows rows = rows_of(args, memory, device.multiprocessors);
  const auto launch = [&](auto kernel, int blocks_of_row) {
    pdl_launch(kernel, dim3(static_cast<unsigned>(memory.rows * blocks_of_row)), kRowThreads, 0, device, native(stream),
               args.kName, rows, memory);
  };
  launch(find_largest, rows.segments);
  if (!draws(args)) {
    launch(finish_greedy, 1);
    return;
  }
  launch(search_keys<0>, rows.runs);
  if (args.top_k.defined()) {
    launch(search_keys<1>, rows.runs);
    launch(search_keys<2>, rows.runs);
  }
  if (args.top_p.defined()) {
    launch(search_keys<3>, rows.runs);
    launch(search_keys<4>, rows.runs);
  }
  launch(sum_segments, rows.runs);
  launch(draw_token, 1);
}

constexpr Kernel<SampleTokensArgs> kKernels[] = {{"segments", supports, workspace_bytes, run}};

}  // namespace

KernelList<SampleTokensArgs> sample_tokens_kernels() { return kKernels; }

}  // namespace thalweg::cu
