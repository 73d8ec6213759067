// Launches of the operations on logits.

#include "core/arena.h"
#include "metal/kernels.h"
#include "metal/layers.h"
#include "thalweg/device.h"

namespace thalweg::metal {
namespace {

static_assert(int{kBadBounds} == kFaultCuSeqlens && int{kBadIndices} == kFaultStateIndices &&
              int{kBadLogits} == kFaultLogits);

// Sums of weights have 64 bits, each weight 40.
constexpr std::int64_t kMostLogits = std::int64_t{1} << 23;

std::int64_t segments_of(const SampleTokensArgs& args) { return ceil_div(args.logits.dim(1), kSegment); }

struct SampleMemory {
  float* adjusted = nullptr;  // [N,V], with repeat_penalty or allowed
  std::uint64_t* ranks;       // [N,segments]

  SampleMemory(const SampleTokensArgs& args, Arena& arena)
      : ranks(arena.take<std::uint64_t>(args.logits.dim(0) * segments_of(args))) {
    if (args.repeat_penalty.defined() || args.allowed.defined())
      adjusted = arena.take<float>(args.logits.dim(0) * args.logits.dim(1));
  }
};

std::string supports_sample(const SampleTokensArgs& args, const Stream&) {
  return args.logits.dim(1) <= kMostLogits ? "" : "needs at most 2^23 logits";
}

std::size_t sample_workspace(const SampleTokensArgs& args, const Stream&) {
  Arena arena;
  const SampleMemory counted(args, arena);
  return arena.used();
}

int given(const SampleTokensArgs& args) {
  int bits = 0;
  const auto add = [&](const ConstTensor& tensor, int bit) { bits |= tensor.defined() ? bit : 0; };
  add(args.slots, kGivenSlots);
  add(args.temperature, kGivenTemperature);
  add(args.top_k, kGivenTopK);
  add(args.top_p, kGivenTopP);
  add(args.min_p, kGivenMinP);
  add(args.repeat_penalty, kGivenPenalty);
  add(args.repeat_last, kGivenLast);
  add(args.seed, kGivenSeed);
  add(args.history, kGivenHistory);
  add(args.allowed, kGivenAllowed);
  return bits;
}

Launch segments_launch(std::string_view kernel, const SampleTokensArgs& args, const SampleParameters& p) {
  Launch launch;
  launch.kernel = kernel;
  launch.set(p).constant("kSettings", given(args));
  launch.threads = kSegmentThreads;
  launch.grid = {static_cast<std::uint32_t>(p.segments), static_cast<std::uint32_t>(args.logits.dim(0)), 1};
  return launch;
}

// Copies the logits with penalty and mask.
void adjust(const SampleTokensArgs& args, const Buffer& adjusted, const SampleParameters& p, Encoder& encoder) {
  Launch copy = segments_launch("copy_logits", args, p);
  copy.add(args.logits).add(adjusted).add(args.allowed);
  encoder.launch(copy);
  if (!args.repeat_penalty.defined()) return;
  Launch launch = segments_launch("penalize_logits", args, p);
  launch.add(args.logits).add(adjusted).add(args.lengths).add(args.history).add(args.slots).add(args.repeat_penalty);
  launch.add(args.repeat_last).add(args.allowed);
  launch.grid = {static_cast<std::uint32_t>(args.logits.dim(0)), 1, 1};
  launch.after_previous = true;
  encoder.launch(launch);
}

void run_sample(const SampleTokensArgs& args, Workspace workspace, const Stream& stream) {
  if (args.logits.dim(0) == 0) return;
  Arena arena(workspace);
  const SampleMemory memory(args, arena);
  SampleParameters p{};
  p.vocabulary = static_cast<std::int32_t>(args.logits.dim(1));
  p.segments = static_cast<std::int32_t>(segments_of(args));
  p.history_slots = static_cast<std::int32_t>(args.history.dim(0));
  p.history_size = static_cast<std::int32_t>(args.history.dim(1));
  p.logits_row = args.logits.stride(0);
  p.history_slot = args.history.stride(0);
  p.seed_row = args.seed.stride(0);
  p.allowed_row = args.allowed.stride(0);
  const auto encoder = make_encoder(args.kName, stream);
  Buffer logits = buffer_of(args.logits);
  if (memory.adjusted != nullptr) {
    logits = buffer_of(memory.adjusted, args.logits.size());
    adjust(args, logits, p, *encoder);
    p.logits_row = p.vocabulary;
  }
  const Buffer ranks = buffer_of(memory.ranks, args.logits.dim(0) * p.segments);
  Launch largest = segments_launch("largest_ranks", args, p);
  largest.add(logits).add(args.slots).add(ranks);
  largest.threadgroup_bytes = 32 * sizeof(std::uint64_t);
  largest.after_previous = memory.adjusted != nullptr;
  encoder->launch(largest);
  Launch choose = segments_launch("choose_tokens", args, p);
  choose.add(logits).add(ranks).add(args.lengths).add(args.slots).add(args.temperature).add(args.top_k);
  choose.add(args.top_p).add(args.min_p).add(args.seed).add(args.tokens).add(args.fault);
  choose.constant("kHasFault", args.fault.defined());
  // Greedy rows only reduce their segments.
  choose.threads = args.temperature.defined() ? std::uint32_t{kSampleThreads} : 32U;
  // Of simdgroups three words each, what was found, and two words for each bin.
  choose.threadgroup_bytes = (3 * 32 + 2 + kSampleBins) * sizeof(std::uint64_t);
  choose.grid = {static_cast<std::uint32_t>(args.logits.dim(0)), 1, 1};
  choose.after_previous = true;
  encoder->launch(choose);
}

void run_logprobs(const LogprobsArgs& args, Workspace, const Stream& stream) {
  LogprobParameters p{};
  p.vocabulary = static_cast<std::int32_t>(args.logits.dim(1));
  p.count = static_cast<std::int32_t>(args.top_tokens.dim(1));
  p.logits_row = args.logits.stride(0);
  p.top_tokens_row = args.top_tokens.stride(0);
  p.top_logprobs_row = args.top_logprobs.stride(0);
  Launch launch;
  launch.kernel = args.kName;
  launch.set(p).add(args.logits).add(args.tokens).add(args.logprob).add(args.top_tokens).add(args.top_logprobs);
  launch.constant("kIndexed", args.tokens.defined());
  launch.threads = kSampleThreads;
  launch.threadgroup_bytes = (32 + 16) * sizeof(std::uint64_t);
  launch.grid = {static_cast<std::uint32_t>(args.logits.dim(0)), 1, 1};
  make_encoder(args.kName, stream)->launch(launch);
}

constexpr Kernel<SampleTokensArgs> kSample[] = {{"rows", supports_sample, sample_workspace, run_sample}};
constexpr Kernel<LogprobsArgs> kLogprobs[] = {
    {"rows", always_supported<LogprobsArgs>, no_workspace<LogprobsArgs>, run_logprobs}};

}  // namespace

void add_sampling_kernels(Backend& backend) {
  std::get<KernelList<SampleTokensArgs>>(backend.kernels) = kSample;
  std::get<KernelList<LogprobsArgs>>(backend.kernels) = kLogprobs;
}

}  // namespace thalweg::metal
