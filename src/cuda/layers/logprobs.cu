// logprobs. A block per segment of a row sums exponentials and sorts out the segment's likeliest tokens, K at the most;
// then a block per row combines the sums and merges the lists. Each of K rounds takes the likeliest that is left.

#include <cmath>
#include <string>

#include "core/arena.h"
#include "cuda/common/pdl.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/layers/logit_rows.h"

namespace thalweg::cu {
namespace {

struct LogprobRows {
  const float* logits = nullptr;
  std::int64_t logits_stride = 0;
  const std::int32_t* tokens = nullptr;
  float* logprob = nullptr;
  std::int32_t* top_tokens = nullptr;
  std::int64_t top_tokens_stride = 0;
  float* top_logprobs = nullptr;
  std::int64_t top_logprobs_stride = 0;
  int vocabulary = 0;
  int segments = 0;
  int count = 0;   // K
  int listed = 0;  // of a segment
};

struct Memory {
  U64* largest = nullptr;  // [N,segments] ranks
  double* sums = nullptr;  // [N,segments] of exp(logit - the segment's largest)
  U64* lists = nullptr;    // [N,segments,listed] ranks, falling; 0 beyond the segment's tokens
};

__device__ bool absent(const LogprobRows& rows, int n) { return rows.tokens != nullptr && rows.tokens[n] < 0; }

__global__ void __launch_bounds__(kRowThreads) sum_segments(const LogprobRows rows, const Memory memory) {
  const int n = static_cast<int>(blockIdx.x) / rows.segments;
  const int segment = static_cast<int>(blockIdx.x) % rows.segments;
  const int first = segment * kSegment + static_cast<int>(threadIdx.x);
  pdl_trigger_and_wait();
  if (absent(rows, n)) return;
  const float* logits = rows.logits + n * rows.logits_stride;
  float values[kSegmentLoads];
#pragma unroll
  for (int i = 0; i < kSegmentLoads; ++i) {
    const int token = first + i * kRowThreads;
    values[i] = token < rows.vocabulary ? logits[token] : 0.0F;
  }
  U64 ranks[kSegmentLoads];
#pragma unroll
  for (int i = 0; i < kSegmentLoads; ++i) {
    const int token = first + i * kRowThreads;
    ranks[i] = token < rows.vocabulary ? rank_of(values[i], token) : 0;
  }
  const auto likeliest = [&] {
    U64 best = 0;
#pragma unroll
    for (const U64 rank : ranks) best = max(best, rank);
    return block_max(best);
  };
  U64 best = likeliest();
  const float largest = logit_of(key_of_rank(best));
  double sum = 0.0;
#pragma unroll
  for (int i = 0; i < kSegmentLoads; ++i) {
    // Where all are -infinity they add nothing; where one is no number the sum is not used.
    if (ranks[i] != 0 && has_probabilities(best)) sum += static_cast<double>(expf(values[i] - largest));
  }
  sum = block_sum(sum);
  const std::int64_t at = static_cast<std::int64_t>(n) * rows.segments + segment;
  if (threadIdx.x == 0) {
    memory.largest[at] = best;
    memory.sums[at] = sum;
  }
  for (int i = 0; i < rows.listed; ++i) {
    if (i > 0) best = likeliest();
    if (threadIdx.x == 0) memory.lists[at * rows.listed + i] = best;
#pragma unroll
    for (U64& rank : ranks) {
      if (rank == best) rank = 0;
    }
  }
}

__device__ void write_all(const LogprobRows& rows, int n, float value) {
  if (threadIdx.x == 0 && rows.logprob != nullptr) rows.logprob[n] = value;
  for (int i = static_cast<int>(threadIdx.x); i < rows.count; i += kRowThreads) {
    rows.top_tokens[n * rows.top_tokens_stride + i] = -1;
    rows.top_logprobs[n * rows.top_logprobs_stride + i] = value;
  }
}

// Shared memory: of each segment the rank at the head of what is left of its list, and that rank's index.
__global__ void __launch_bounds__(kRowThreads) finish_rows(const LogprobRows rows, const Memory memory) {
  extern __shared__ U64 heads[];
  int* indices = reinterpret_cast<int*>(heads + rows.segments);
  const auto n = static_cast<int>(blockIdx.x);
  const auto thread = static_cast<int>(threadIdx.x);
  pdl_trigger_and_wait();
  if (absent(rows, n)) {
    write_all(rows, n, 0.0F);
    return;
  }
  const std::int64_t row = static_cast<std::int64_t>(n) * rows.segments;
  U64 best = 0;
  for (int i = thread; i < rows.segments; i += kRowThreads) best = max(best, memory.largest[row + i]);
  best = block_max(best);
  const bool outside = rows.tokens != nullptr && rows.tokens[n] >= rows.vocabulary;
  if (!has_probabilities(best) || outside) {
    write_all(rows, n, __uint_as_float(0x7FC00000U));
    return;
  }
  const auto largest = static_cast<double>(logit_of(key_of_rank(best)));
  double sum = 0.0;
  for (int i = thread; i < rows.segments; i += kRowThreads) {
    const double of_segment = logit_of(key_of_rank(memory.largest[row + i]));
    sum += memory.sums[row + i] * exp(of_segment - largest);
  }
  const double normalizer = log(block_sum(sum));
  const auto logprob_of = [&](float logit) {
    return static_cast<float>(static_cast<double>(logit) - largest - normalizer);
  };
  if (thread == 0 && rows.logprob != nullptr) {
    rows.logprob[n] = logprob_of(rows.logits[n * rows.logits_stride + rows.tokens[n]]);
  }
  // A thread has every kRowThreads-th segment: no other touches their heads.
  for (int i = thread; i < rows.segments && rows.count > 0; i += kRowThreads) {
    heads[i] = memory.lists[(row + i) * rows.listed];
    indices[i] = 0;
  }
  for (int k = 0; k < rows.count; ++k) {
    best = 0;
    for (int i = thread; i < rows.segments; i += kRowThreads) best = max(best, heads[i]);
    best = block_max(best);
    for (int i = thread; i < rows.segments; i += kRowThreads) {
      if (heads[i] != best) continue;
      const int next = ++indices[i];
      heads[i] = next < rows.listed ? memory.lists[(row + i) * rows.listed + next] : 0;
    }
    if (thread == 0) {
      rows.top_tokens[n * rows.top_tokens_stride + k] = token_of_rank(best);
      rows.top_logprobs[n * rows.top_logprobs_stride + k] = logprob_of(logit_of(key_of_rank(best)));
    }
  }
}

// ---- Host

int segments_of(const LogprobsArgs& args) { return static_cast<int>((args.logits.dim(1) + kSegment - 1) / kSegment); }
std::int64_t count_of(const LogprobsArgs& args) { return args.top_tokens.defined() ? args.top_tokens.dim(1) : 0; }
std::int64_t listed_of(const LogprobsArgs& args) { return std::min<std::int64_t>(count_of(args), kSegment); }

Memory take_memory(const LogprobsArgs& args, Arena& arena) {
  const std::int64_t segments = args.logits.dim(0) * segments_of(args);
  Memory memory;
  memory.largest = arena.take<U64>(segments);
  memory.sums = arena.take<double>(segments);
  memory.lists = arena.take<U64>(segments * listed_of(args));
  return memory;
}

std::string supports(const LogprobsArgs& args, const Stream&) {
  if (args.logits.dim(1) > kMostLogits) return "takes at most " + std::to_string(kMostLogits) + " logits of a row";
  if (args.logits.dim(0) * segments_of(args) > 0x7FFFFFFF) return "takes no more rows";
  return {};
}

std::size_t workspace_bytes(const LogprobsArgs& args, const Stream&) {
  Arena arena;
  take_memory(args, arena);
  return arena.used();
}

void run(const LogprobsArgs& args, Workspace workspace, const Stream& stream) {
  if (args.logits.dim(0) == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DeviceProperties& device = properties(stream.device.index);
  Arena arena(workspace);
  const Memory memory = take_memory(args, arena);
  LogprobRows rows;
  rows.logits = static_cast<const float*>(args.logits.data);
  rows.logits_stride = args.logits.stride(0);
  rows.tokens = static_cast<const std::int32_t*>(args.tokens.data);
  rows.logprob = static_cast<float*>(args.logprob.data);
  rows.top_tokens = static_cast<std::int32_t*>(args.top_tokens.data);
  rows.top_tokens_stride = args.top_tokens.stride(0);
  rows.top_logprobs = static_cast<float*>(args.top_logprobs.data);
  rows.top_logprobs_stride = args.top_logprobs.stride(0);
  rows.vocabulary = static_cast<int>(args.logits.dim(1));
  rows.segments = segments_of(args);
  rows.count = static_cast<int>(count_of(args));
  rows.listed = static_cast<int>(listed_of(args));
  const auto sequences = static_cast<unsigned>(args.logits.dim(0));
  const auto launch = [&](auto kernel, unsigned blocks, std::size_t shared_bytes) {
    pdl_launch(kernel, dim3(blocks), kRowThreads, shared_bytes, device, native(stream), args.kName, rows, memory);
  };
  launch(sum_segments, sequences * static_cast<unsigned>(rows.segments), 0);
  launch(finish_rows, sequences, static_cast<std::size_t>(rows.segments) * (sizeof(U64) + sizeof(int)));
}

constexpr Kernel<LogprobsArgs> kKernels[] = {{"segments", supports, workspace_bytes, run}};

}  // namespace

KernelList<LogprobsArgs> logprobs_kernels() { return kKernels; }

}  // namespace thalweg::cu
