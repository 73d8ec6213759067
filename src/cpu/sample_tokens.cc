// sample_tokens: a row on one thread, in f64. The draw is decode's of old: equal settings give the texts they always
// gave.

#include <algorithm>
#include <cmath>
#include <span>

#include "core/arena.h"
#include "core/sampling.h"
#include "core/sequences.h"
#include "core/threads.h"
#include "cpu/sampling.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

struct Candidate {
  std::int32_t token;
  float logit;
  double weight;  // exp((logit - largest) / temperature)
};

// Likelier first; ties to the lower id.
bool likelier(const Candidate& a, const Candidate& b) {
  return a.logit != b.logit ? a.logit > b.logit : a.token < b.token;
}

double total_weight(std::span<const Candidate> candidates) {
  double total = 0;
  for (const Candidate& candidate : candidates) total += candidate.weight;
  return total;
}

// The k likeliest, sorted.
std::span<Candidate> likeliest(std::span<Candidate> candidates, std::size_t k) {
  k = std::min(k, candidates.size());
  std::partial_sort(candidates.begin(), candidates.begin() + static_cast<std::ptrdiff_t>(k), candidates.end(),
                    likelier);
  return candidates.first(k);
}

// The fewest of the likeliest that have at least this fraction of the weight.
std::span<Candidate> most_probable(std::span<Candidate> candidates, double fraction) {
  const double total = total_weight(candidates);
  // A few candidates usually suffice: sorts no more than needed.
  std::size_t sorted = 0;
  std::size_t next = 64;
  double sum = 0;
  while (sorted < candidates.size()) {
    const std::size_t end = std::min(next, candidates.size());
    std::partial_sort(candidates.begin() + static_cast<std::ptrdiff_t>(sorted),
                      candidates.begin() + static_cast<std::ptrdiff_t>(end), candidates.end(), likelier);
    for (; sorted < end; ++sorted) {
      sum += candidates[sorted].weight;
      if (sum >= fraction * total) return candidates.first(sorted + 1);
    }
    next *= 8;
  }
  return candidates;
}

std::size_t likeliest_token(std::span<const float> logits) {
  std::size_t best = 0;
  for (std::size_t i = 1; i < logits.size(); ++i) {
    if (logits[i] > logits[best]) best = i;
  }
  return best;
}

// `memory` [V].
std::int32_t sample_row(std::span<const float> logits, std::uint64_t position, const Sampling& sampling,
                        std::span<Candidate> memory) {
  const std::size_t best = likeliest_token(logits);
  if (sampling.temperature == 0.0F) return static_cast<std::int32_t>(best);

  const double largest = logits[best];
  std::size_t count = 0;
  for (std::size_t i = 0; i < logits.size(); ++i) {
    const double weight = std::exp((logits[i] - largest) / static_cast<double>(sampling.temperature));
    if (weight > 0) memory[count++] = {static_cast<std::int32_t>(i), logits[i], weight};
  }
  std::span<Candidate> kept = memory.first(count);
  if (sampling.top_k > 0) kept = likeliest(kept, static_cast<std::size_t>(sampling.top_k));
  if (sampling.top_p < 1) kept = most_probable(kept, static_cast<double>(sampling.top_p));
  // The largest weight is 1, so that min_p compares with the weights.
  const auto end = std::remove_if(kept.begin(), kept.end(), [&](const Candidate& candidate) {
    return candidate.weight < static_cast<double>(sampling.min_p);
  });
  kept = kept.first(static_cast<std::size_t>(end - kept.begin()));

  // In the order of ids, so that settings that keep the same tokens draw the same one.
  std::sort(kept.begin(), kept.end(), [](const Candidate& a, const Candidate& b) { return a.token < b.token; });
  double left = draw(sampling.seed, position) * total_weight(kept);
  for (const Candidate& candidate : kept) {
    left -= candidate.weight;
    if (left < 0) return candidate.token;
  }
  return kept.back().token;
}

// The memory of one worker; what the call's tensors make unnecessary is null.
struct RowMemory {
  float* adjusted = nullptr;
  Candidate* candidates = nullptr;

  RowMemory(const SampleTokensArgs& args, Arena& arena) {
    if (args.repeat_penalty.defined() || args.allowed.defined()) adjusted = arena.take<float>(args.logits.dim(1));
    if (args.temperature.defined()) candidates = arena.take<Candidate>(args.logits.dim(1));
  }

  static std::size_t bytes(const SampleTokensArgs& args) {
    Arena arena;
    const RowMemory counted(args, arena);
    return arena.used();
  }
};

// A row is a task, and memory is only for as many workers as there are rows.
int workers(const SampleTokensArgs& args, const Stream& stream) {
  return static_cast<int>(std::min<std::int64_t>(thread_count(stream), std::max<std::int64_t>(args.logits.dim(0), 1)));
}

std::size_t sample_workspace(const SampleTokensArgs& args, const Stream& stream) {
  return static_cast<std::size_t>(workers(args, stream)) * RowMemory::bytes(args);
}

void run_sample(const SampleTokensArgs& args, Workspace workspace, const Stream& stream) {
  const auto vocabulary = static_cast<std::size_t>(args.logits.dim(1));
  const std::size_t row_bytes = RowMemory::bytes(args);
  auto* tokens = static_cast<std::int32_t*>(args.tokens.data);
  const auto* lengths = static_cast<const std::int32_t*>(args.lengths.data);
  const double task_ns = static_cast<double>(vocabulary) * tuning::kSelectNs;
  parallel_for(Stream::cpu(workers(args, stream)), args.logits.dim(0), task_ns, [&](std::int64_t n, int worker) {
    if (state_slot(args.slots, n) < 0) {
      tokens[n] = -1;
      return;
    }
    const Sampling sampling = sampling_of(args, n);
    std::span<const float> logits(static_cast<const float*>(args.logits.row(n)), vocabulary);
    Arena arena({static_cast<std::byte*>(workspace.data) + row_bytes * static_cast<std::size_t>(worker), row_bytes});
    const RowMemory memory(args, arena);
    const std::span adjusted(memory.adjusted, memory.adjusted != nullptr ? vocabulary : 0);
    const std::span<const std::int32_t> recent = penalized_tokens(args, n, sampling);
    if (!recent.empty()) {
      penalize(logits, recent, sampling.repeat_penalty, adjusted);
      logits = adjusted;
    }
    if (const std::span<const std::uint32_t> allowed = allowed_tokens(args, n); !allowed.empty()) {
      keep_allowed(logits, allowed, adjusted);
      logits = adjusted;
    }
    const auto position = static_cast<std::uint64_t>(lengths != nullptr ? lengths[n] : 0);
    tokens[n] = sample_row(logits, position, sampling, std::span(memory.candidates, vocabulary));
  });
}

constexpr Kernel<SampleTokensArgs> kSample[] = {
    {"rows", always_supported<SampleTokensArgs>, sample_workspace, run_sample}};

}  // namespace

KernelList<SampleTokensArgs> sample_tokens_kernels() { return kSample; }

}  // namespace thalweg::cpu
