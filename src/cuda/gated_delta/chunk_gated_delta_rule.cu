#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "core/arena.h"
#include "cuda/common/tensor_map.h"
#include "cuda/common/tensor_view.h"
#include "cuda/gated_delta/chunk_kernels.h"
#include "cuda/gated_delta/gated_delta.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/row_hint.h"
#include "cuda/tuning.h"

namespace thalweg::cu {
namespace {

using Args = ChunkGatedDeltaRuleArgs;

std::int64_t sequence_count(const Args& args) {
  return args.cu_seqlens.defined() ? args.cu_seqlens.dim(0) - 1 : args.q.dim(0);
}

// Tiles of 64 rows of a state, of one sequence.
std::int64_t sequence_tiles(const Args& args) { return args.v.dim(2) * (args.v.dim(3) / 64); }

// How the sequences of a call are split.
struct Split {
  int segment_chunks = 0;  // 0: not at all
  int walk_segments = 1;   // that a walk for outputs goes through
};

// The sequences of a call. The host does not know the lengths of packed ones.
struct Sequences {
  std::int64_t count;
  std::int64_t chunks;  // of all
  bool lengths_known;

  explicit Sequences(const Args& args)
      : count(std::max<std::int64_t>(sequence_count(args), 1)),
        chunks(args.q.dim(0) * ((args.q.dim(1) + kChunk - 1) / kChunk)),
        lengths_known(count == 1 || !args.cu_seqlens.defined()) {}

  std::int64_t longest() const {
    return (lengths_known ? 2 : tuning::gated_delta::kLongestPackedHalves) * chunks / (2 * count);
  }
};

// Of the two passes: chunks per segment, or 0 if sequences are better not split, and chunks that the longest walk takes
// the time of.
struct TwoPassSplit {
  int segment_chunks = 0;
  std::int64_t walk;
};

TwoPassSplit split_two_passes(const Args& args, const Stream& stream) {
  using namespace tuning::gated_delta;
  const Sequences sequences(args);
  const TwoPassSplit unsplit{0, sequences.longest()};
  // With a hint of the rows sequences are not split, since whether that pays depends on the batch.
  if (is_hinted(stream)) return unsplit;
  const int multiprocessors = properties(stream.device.index).multiprocessors;
  const std::int64_t tiles = sequence_tiles(args);
  const std::int64_t wanted = tiles == 0 ? 0 : kSegmentTilesPerMultiprocessor * multiprocessors / tiles;  // segments
  if (wanted < 2) return unsplit;
  const std::int64_t least = tiles * kFewTiles <= multiprocessors ? kShortSegmentChunks : kSegmentChunks;
  const std::int64_t length = std::max(least, (sequences.chunks + wanted - 1) / wanted);
  const bool crowded = (sequences.chunks / length + sequences.count) * tiles > multiprocessors;
  const std::int64_t walk =
      (crowded ? kCrowdedSegmentQuarterWalks : kSegmentQuarterWalks) * length / 4 + kSegmentLaunchChunks;
  return unsplit.walk > walk ? TwoPassSplit{static_cast<int>(length), walk} : unsplit;
}

// Of pairs of tiles in one kernel.
double fused_split_cost(const Split& split) {
  using namespace tuning::gated_delta;
  // A walk may begin a segment early, and B and M of a segment come before.
  return kFusedSplitCall + (split.walk_segments + 2) * split.segment_chunks * kFusedSplitChunk;
}

// For pairs of tiles in one kernel: as many walks for outputs as run at once, and shorter segments, since B and M are
// needed of few heads.
Split choose_fused_split(const Args& args, const Stream& stream) {
  using namespace tuning::gated_delta;
  constexpr std::int64_t kPairRows = 128;
  if (is_hinted(stream) || args.q.dim(3) != kPairRows) return {};
  const std::int64_t pairs = args.v.dim(2) * (args.v.dim(3) / kPairRows);
  const Sequences sequences(args);
  const std::int64_t at_once = pairs == 0 ? 0 : properties(stream.device.index).multiprocessors / pairs;
  if (at_once <= sequences.count) return {};
  // Packed sequences may have one segment each more than their share.
  const std::int64_t wanted =
      sequences.lengths_known ? at_once / sequences.count * sequences.count : at_once - sequences.count + 1;
  const std::int64_t segments = at_once > kFusedManyWalks ? 1 : kFusedWalkSegments;  // of a walk
  const std::int64_t spans = wanted * segments;
  const std::int64_t length = std::max<std::int64_t>(kFusedSegmentChunks, (sequences.chunks + spans - 1) / spans);
  const Split split{static_cast<int>(length), static_cast<int>(segments)};
  const double unsplit = kFusedPairsCall + static_cast<double>(sequences.longest()) * kFusedPairsChunk;
  return fused_split_cost(split) < unsplit ? split : Split{};
}

// The workspace of a call.
struct ChunkWorkspace {
  Split split;
  std::int64_t chunks = 0;
  std::int64_t segments = 0;
  std::int64_t walks = 0;
  std::byte* records = nullptr;  // [chunks,HV] of ChunkRecord::kPitch bytes, for two passes
  float* chunk_gates = nullptr;  // [chunks,HV]
  float* carries = nullptr;      // [segments,HV] of segment_floats()
  std::size_t bytes = 0;
};

ChunkWorkspace lay_out(const Args& args, Workspace workspace, const Split& split, bool has_records) {
  const std::int64_t hv = args.v.dim(2);
  const auto count = [&](std::int64_t tokens) {
    return SequenceMap::count(args.cu_seqlens.defined(), sequence_count(args), args.q.dim(1), tokens);
  };
  Arena arena(workspace);
  ChunkWorkspace result;
  result.split = split;
  const std::int64_t segment_tokens = std::int64_t{kChunk} * split.segment_chunks;
  result.chunks = count(kChunk);
  result.segments = segment_tokens > 0 ? count(segment_tokens) : 0;
  result.walks = segment_tokens > 0 ? count(segment_tokens * split.walk_segments) : sequence_count(args);
  if (has_records) result.records = arena.take<std::byte>(result.chunks * hv * ChunkRecord::kPitch);
  if (has_records || segment_tokens > 0) result.chunk_gates = arena.take<float>(result.chunks * hv);
  result.carries = arena.take<float>(result.segments * hv * segment_floats(args.q.dim(3), args.v.dim(3)));
  result.bytes = arena.used();
  return result;
}

std::string supports_chunks(const Args& args) {
  constexpr std::int64_t kMost = 1 << 30;
  if (args.q.dtype == DType::kF32) return "needs bf16 or f16 activations, not F32";
  const std::int64_t k = args.q.dim(3);
  const std::int64_t v = args.v.dim(3);
  if (k != 64 && k != 128 && k != 256) return "needs K to be 64, 128 or 256, not " + std::to_string(k);
  if (v % 32 != 0) return "needs V to be a multiple of 32, not " + std::to_string(v);
  if (args.qk_norm == QkNorm::kRms) return "has no RMS norm of q and k";
  for (const ConstTensor& tensor : {args.q, args.k, args.v, ConstTensor(args.o)}) {
    if (tensor.dtype != DType::kF32 && !rows_aligned_to(tensor, 16)) return "needs rows aligned to 16 bytes";
  }
  if (args.q.dim(1) > kMost || sequence_count(args) > 65535 || args.v.dim(2) > 65535) {
    return "needs at most 65535 sequences and heads and 2^30 tokens";
  }
  return {};
}

std::string supports_wgmma(const Args& args, const Stream& stream) {
  const std::string reason = sm90_reason(properties(stream.device.index));
  if (!reason.empty()) return reason;
  if (args.q.dim(3) == 256) return "needs K to be 64 or 128, not 256";
  if (args.v.dim(3) % 64 != 0) return "needs V to be a multiple of 64, not " + std::to_string(args.v.dim(3));
  if (args.q.dim(1) == 0) return "needs tokens";
  for (const ConstTensor& tensor : {args.q, args.k, args.v, ConstTensor(args.o)}) {
    for (int i = 0; i + 1 < tensor.rank; ++i) {
      if (tensor.dim(i) > 1 && tensor.stride(i) <= 0) return "needs positive strides";
    }
  }
  if (tensor_map_encoder() == nullptr) return "needs a driver that makes tensor maps";
  return supports_chunks(args);
}

std::string supports_mma(const Args& args, const Stream&) { return supports_chunks(args); }

ChunkWorkspace lay_out_two_passes(const Args& args, Workspace workspace, const Stream& stream) {
  return lay_out(args, workspace, {split_two_passes(args, stream).segment_chunks, 1}, true);
}
ChunkWorkspace lay_out_fused(const Args& args, Workspace workspace, const Stream& stream) {
  return lay_out(args, workspace, choose_fused_split(args, stream), false);
}
std::size_t two_pass_workspace(const Args& args, const Stream& stream) {
  return lay_out_two_passes(args, {}, stream).bytes;
}
std::size_t fused_pairs_workspace(const Args& args, const Stream& stream) {
  return lay_out_fused(args, {}, stream).bytes;
}

ChunkArguments make_arguments(const Args& args, const ChunkWorkspace& memory) {
  ChunkArguments result{};
  result.q = view<const void>(args.q);
  result.k = view<const void>(args.k);
  result.v = view<const void>(args.v);
  result.g = view<const float>(args.g);
  result.beta = view<const float>(args.beta);
  result.gate_a = elements(args.gates.a);
  result.gate_b = elements(args.gates.b);
  result.a_log = elements(args.gates.a_log);
  result.dt_bias = elements(args.gates.dt_bias);
  result.initial_state = view<const void>(args.initial_state);
  result.final_state = view<void>(args.final_state);
  result.state_indices = static_cast<const std::int32_t*>(args.state_indices.data);
  const ConstTensor state = args.initial_state.defined() ? args.initial_state : ConstTensor(args.final_state);
  result.state_slots = state.defined() ? state.dim(0) : sequence_count(args);
  result.o = view<void>(args.o);
  result.checkpoints = view<void>(args.checkpoints);
  result.checkpoint_chunks = args.checkpoint_tokens / kChunk;
  result.checkpoint_count = args.checkpoints.dim(1);
  result.checkpoints_are_bf16 = args.checkpoints.dtype == DType::kBF16;
  result.fault = static_cast<std::int32_t*>(args.fault.data);
  result.map = {static_cast<const std::int32_t*>(args.cu_seqlens.data), static_cast<int>(sequence_count(args)),
                static_cast<int>(args.q.dim(1))};
  result.hk = static_cast<int>(args.q.dim(2));
  result.hv = static_cast<int>(args.v.dim(2));
  result.key_width = static_cast<int>(args.q.dim(3));
  result.value_width = static_cast<int>(args.v.dim(3));
  result.tiled = args.head_map == HeadMap::kTiled;
  result.normalize = args.qk_norm == QkNorm::kL2;
  result.state_is_kv = args.state_layout == StateLayout::kKV;
  result.state_is_bf16 = state.defined() && state.dtype == DType::kBF16;
  result.o_is_f32 = args.o.dtype == DType::kF32;
  result.norm_eps = args.qk_norm_eps;
  result.scale = args.scale ? *args.scale : static_cast<float>(1.0 / std::sqrt(static_cast<double>(args.q.dim(3))));
  result.records = memory.records;
  result.chunk_gates = memory.chunk_gates;
  result.carries = memory.carries;
  result.segment_chunks = memory.split.segment_chunks;
  result.segments = memory.segments;
  result.walk_segments = memory.split.walk_segments;
  result.walks = memory.walks;
  result.chunks = memory.chunks;
  return result;
}

// Launches the second pass over segments or whole sequences.
using LaunchWalk = void(const ChunkArguments& args, DType dtype, const DeviceProperties& device, cudaStream_t stream);

template <LaunchWalk* kCarries, LaunchWalk* kScan>
void run_two_passes(const Args& args, Workspace workspace, const Stream& stream) {
  if (sequence_count(args) == 0 || args.v.dim(2) == 0) return;
  const CurrentDevice current(stream, Args::kName);
  const ChunkArguments arguments = make_arguments(args, lay_out_two_passes(args, workspace, stream));
  const DeviceProperties& device = properties(stream.device.index);
  launch_chunk_prepare(arguments, args.q.dtype, native(stream));
  if (arguments.segment_chunks > 0) {
    kCarries(arguments, args.q.dtype, device, native(stream));
    launch_chunk_carry(arguments, device, native(stream));
  }
  kScan(arguments, args.q.dtype, device, native(stream));
}

template <int kConsumers>
std::string supports_fused(const Args& args, const Stream& stream) {
  if (args.v.dim(3) % (64 * kConsumers) != 0) {
    return "needs V to be a multiple of " + std::to_string(64 * kConsumers) + ", not " + std::to_string(args.v.dim(3));
  }
  return supports_wgmma(args, stream);
}

template <int kConsumers>
void run_fused(const Args& args, const ChunkWorkspace& memory, const Stream& stream, LengthRange longest = {}) {
  if (sequence_count(args) == 0 || args.v.dim(2) == 0) return;
  const CurrentDevice current(stream, Args::kName);
  const auto launch = args.q.dtype == DType::kBF16 ? sm90::launch_chunk_fused_bf16 : sm90::launch_chunk_fused_f16;
  const DeviceProperties& device = properties(stream.device.index);
  ChunkArguments arguments = make_arguments(args, memory);
  arguments.longest = longest;
  if (arguments.segment_chunks > 0) {
    launch_chunk_gates(arguments, device, native(stream));
    launch(arguments, kConsumers, Pass::kCarries, device, native(stream));
    launch_chunk_carry(arguments, device, native(stream));
  }
  launch(arguments, kConsumers, Pass::kScan, device, native(stream));
}

void run_fused_tiles(const Args& args, Workspace, const Stream& stream) {
  run_fused<1>(args, lay_out(args, {}, {}, false), stream);
}
void run_fused_pairs(const Args& args, Workspace workspace, const Stream& stream) {
  run_fused<2>(args, lay_out_fused(args, workspace, stream), stream);
}

// What the costs of a call depend on.
struct CallSize {
  double multiprocessors;
  double sequences;
  double tiles;    // of 64 rows, of one sequence
  double average;  // chunks of a sequence, 1 at least
  double longest;  // in terms of the average

  CallSize(const Args& args, const Stream& stream) {
    const Sequences all(args);
    multiprocessors = std::max(1, properties(stream.device.index).multiprocessors);
    sequences = static_cast<double>(all.count);
    tiles = static_cast<double>(sequence_tiles(args));
    average = std::max(static_cast<double>(all.chunks) / sequences, 1.0);
    // Of two packed sequences the longer one decides; of more, blocks of short ones make room for others.
    const bool is_packed_pair = all.count == 2 && !all.lengths_known;
    longest = is_packed_pair ? tuning::gated_delta::kLongestPacked : 1.0;
  }

  // Chunks that pass one after the other on a multiprocessor, with as many blocks of a sequence.
  double walk(double blocks) const {
    return std::max(longest, std::ceil(blocks * sequences / multiprocessors)) * average;
  }
  // The same for two sequences of which one has `share` of all chunks, in terms of these. Its blocks come first.
  double walk_of_two(double blocks, double share) const {
    const double idle = multiprocessors - blocks;  // beside them
    if (idle <= 0.0) return std::ceil(2.0 * blocks / multiprocessors) / 2.0;
    return std::max(share, std::min(std::ceil(blocks / idle) * (1.0 - share), 1.0));
  }
};

// One kernel for both passes, with as many chunks one after the other on a multiprocessor.
double tiles_time(double walk) { return tuning::gated_delta::kFusedCall + walk * tuning::gated_delta::kFusedChunk; }
double pairs_time(double walk) {
  return tuning::gated_delta::kFusedPairsCall + walk * tuning::gated_delta::kFusedPairsChunk;
}

double fused_cost(const Args& args, const Stream& stream) {
  const CallSize size(args, stream);
  return cost_by_count(tiles_time(size.walk(size.tiles)), stream);
}

double fused_pairs_cost(const Args& args, const Stream& stream) {
  const Split split = choose_fused_split(args, stream);
  if (split.segment_chunks > 0) return cost_by_count(fused_split_cost(split), stream);
  const CallSize size(args, stream);
  return cost_by_count(pairs_time(size.walk(size.tiles / 2)), stream);
}

// Two packed sequences, whose lengths only the device knows: how many tokens the longer one has at most for pairs of
// tiles to be the fastest, and for sequences to be better not split.
struct LengthLimits {
  int pairs = 0;
  int unsplit = 0;
};

LengthLimits find_limits(const Args& args, const Stream& stream) {
  const CallSize size(args, stream);
  const Split split = choose_fused_split(args, stream);
  const double split_time =
      split.segment_chunks > 0 ? fused_split_cost(split) : std::numeric_limits<double>::infinity();
  const double chunks = size.average * size.sequences;
  LengthLimits limits;
  bool pairs_pay = true;
  for (int percent = 50; percent <= 100; ++percent) {
    const double pairs = pairs_time(size.walk_of_two(size.tiles / 2, percent / 100.0) * chunks);
    const double tiles = tiles_time(size.walk_of_two(size.tiles, percent / 100.0) * chunks);
    if (std::min(pairs, tiles) > split_time) break;
    limits.unsplit = static_cast<int>(args.q.dim(1) * percent / 100);
    pairs_pay = pairs_pay && pairs <= tiles;
    if (pairs_pay) limits.pairs = limits.unsplit;
  }
  return limits;
}

// Pairs of tiles; tiles where one sequence is much longer than the other, and blocks of the shorter one fill the
// multiprocessors that the longer one leaves; segments of pairs where the host may split and one is longer still.
std::string supports_by_length(const Args& args, const Stream& stream) {
  if (!args.cu_seqlens.defined() || sequence_count(args) != 2) return "needs two packed sequences";
  const std::string reason = supports_fused<2>(args, stream);
  if (!reason.empty()) return reason;
  if (find_limits(args, stream).unsplit == 0) return "needs so many heads that not all sequences are split";
  return {};
}

void run_by_length(const Args& args, Workspace workspace, const Stream& stream) {
  const ChunkWorkspace whole = lay_out(args, {}, {}, false);
  const ChunkWorkspace split = lay_out_fused(args, workspace, stream);
  const LengthLimits limits = find_limits(args, stream);
  const bool splits = split.split.segment_chunks > 0 && limits.unsplit < args.q.dim(1);
  if (limits.pairs > 0) run_fused<2>(args, whole, stream, {0, limits.pairs});
  const int first = limits.pairs > 0 ? limits.pairs + 1 : 0;
  const int last = splits ? limits.unsplit : kAnyLength;
  if (first <= last) run_fused<1>(args, whole, stream, {first, last});
  if (splits) run_fused<2>(args, split, stream, {limits.unsplit + 1, kAnyLength});
}

// With sequences of one length: where they are better split even then, other kernels cost less.
double by_length_cost(const Args& args, const Stream& stream) {
  CallSize size(args, stream);
  size.longest = 1.0;
  const bool splits = choose_fused_split(args, stream).segment_chunks > 0;
  const double launches = splits ? tuning::gated_delta::kByLengthSplitCall : tuning::gated_delta::kByLengthCall;
  return cost_by_count(launches + std::min(pairs_time(size.walk(size.tiles / 2)), tiles_time(size.walk(size.tiles))),
                       stream);
}

double wgmma_cost(const Args& args, const Stream& stream) {
  using namespace tuning::gated_delta;
  const CallSize size(args, stream);
  // Of all chunks, value heads of 128 rows and key heads, for each multiprocessor.
  const double value_heads = size.average * size.sequences * size.tiles / 2 / size.multiprocessors;
  const double key_heads = value_heads * static_cast<double>(args.q.dim(2)) / static_cast<double>(args.v.dim(2));
  const TwoPassSplit split = split_two_passes(args, stream);
  if (split.segment_chunks > 0) {
    return kTwoPassCall + static_cast<double>(split.walk) * kTwoPassSplitChunk + key_heads * kTwoPassKeyHead;
  }
  return kTwoPassCall + std::max(size.longest * size.average * kTwoPassChunk,
                                 value_heads * kTwoPassValueHead + key_heads * kTwoPassKeyHead);
}

double mma_cost(const Args& args, const Stream& stream) {
  return tuning::gated_delta::kMmaOverWgmma * wgmma_cost(args, stream);
}

double tokens_cost(const Args& args, const Stream& stream) {
  const CallSize size(args, stream);
  return size.walk(size.tiles) * tuning::gated_delta::kTokenByTokenChunk;
}

std::string supports_tokens(const Args& args, const Stream&) { return token_by_token_supports(args); }

void run_tokens(const Args& args, Workspace, const Stream& stream) {
  run_token_by_token(args, {{}, args.checkpoints, args.checkpoint_tokens}, stream, Args::kName);
}

}  // namespace

KernelList<Args> chunk_gated_delta_rule_kernels() {
  // wgmma stands before wgmma_fused_pairs: it is faster where their costs are equal.
  static constexpr Kernel<Args> kKernels[] = {
      {"wgmma_fused", supports_fused<1>, no_workspace<Args>, run_fused_tiles, nullptr, Arithmetic::k16Bit, fused_cost},
      {"wgmma", supports_wgmma, two_pass_workspace, run_two_passes<sm90::launch_chunk_carries, sm90::launch_chunk_scan>,
       nullptr, Arithmetic::k16Bit, wgmma_cost},
      {"wgmma_fused_pairs", supports_fused<2>, fused_pairs_workspace, run_fused_pairs, nullptr, Arithmetic::k16Bit,
       fused_pairs_cost},
      {"wgmma_by_length", supports_by_length, fused_pairs_workspace, run_by_length, nullptr, Arithmetic::k16Bit,
       by_length_cost},
      {"mma", supports_mma, two_pass_workspace, run_two_passes<launch_chunk_carries, launch_chunk_scan>, nullptr,
       Arithmetic::k16Bit, mma_cost},
      {"token_by_token", supports_tokens, no_workspace<Args>, run_tokens, nullptr, Arithmetic::kF32, tokens_cost},
  };
  return kKernels;
}

}  // namespace thalweg::cu
