#include <algorithm>
#include <string>

#include "cuda/common/views.h"
#include "cuda/gated_delta/chunk_kernels.h"
#include "cuda/gated_delta/gated_delta.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

using Args = ChunkGatedDeltaRuleArgs;

ScalarView scalar_view(const ConstTensor& tensor) {
  const ScalarType type = tensor.dtype == DType::kF16    ? ScalarType::kF16
                          : tensor.dtype == DType::kBF16 ? ScalarType::kBF16
                                                         : ScalarType::kF32;
  return {view<const void>(tensor), type};
}

std::int64_t sequence_count(const Args& args) {
  return args.cu_seqlens.defined() ? args.cu_seqlens.dim(0) - 1 : args.q.dim(0);
}

std::int64_t pieces(const Args& args, std::int64_t unit) {
  return SequenceMap::pieces(args.cu_seqlens.defined(), sequence_count(args), args.q.dim(1), unit);
}

// Chunks per segment, or 0 if sequences are better not split. Times in chunks of one walk, as measured on an H200.
int choose_segment_chunks(const Args& args, int multiprocessors) {
  const std::int64_t slices = args.v.dim(2) * (args.v.dim(3) / 64);            // 64 rows of a head's state
  const std::int64_t wanted = slices == 0 ? 0 : 2 * multiprocessors / slices;  // segments, to fill the device
  if (wanted < 2) return 0;
  const std::int64_t sequences = std::max<std::int64_t>(sequence_count(args), 1);
  const std::int64_t chunks = args.q.dim(0) * ((args.q.dim(1) + kChunk - 1) / kChunk);
  const std::int64_t least = slices * 8 <= multiprocessors ? 12 : 16;
  const std::int64_t length = std::max(least, (chunks + wanted - 1) / wanted);
  // Nobody here knows how long each packed sequence is: the longest is taken for half as long again as the average.
  const bool alike = sequences == 1 || !args.cu_seqlens.defined();
  const std::int64_t whole = (alike ? 2 : 3) * chunks / (2 * sequences);
  // Heads that do not forget walk through a segment twice. With two blocks on a multiprocessor a walk takes longer.
  const bool crowded = (chunks / length + sequences) * slices > multiprocessors;
  constexpr std::int64_t kLaunches = 24;
  const std::int64_t split = (crowded ? 13 * length / 4 : 2 * length) + kLaunches;
  return whole > split ? static_cast<int>(length) : 0;
}

// Places in the workspace.
struct Layout {
  int segment_chunks;
  std::int64_t slots;
  std::int64_t segments;
  std::size_t chunk_gates;
  std::size_t carries;
  std::size_t bytes;
};

Layout lay_out(const Args& args, const Stream& stream) {
  const auto up = [](std::int64_t bytes) { return static_cast<std::size_t>((bytes + 255) / 256 * 256); };
  const std::int64_t hv = args.v.dim(2);
  Layout result{};
  result.segment_chunks = choose_segment_chunks(args, properties(stream.device.index).multiprocessors);
  result.slots = pieces(args, kChunk);
  result.segments = result.segment_chunks > 0 ? pieces(args, std::int64_t{kChunk} * result.segment_chunks) : 0;
  result.chunk_gates = up(result.slots * hv * ChunkRecord::kPitch);
  result.carries = result.chunk_gates + up(result.slots * hv * 4);
  result.bytes = result.carries + up(result.segments * hv * segment_floats(args.q.dim(3), args.v.dim(3)) * 4);
  return result;
}

// Whether every row of 16-bit elements begins at a multiple of 16 bytes.
bool rows_aligned(const ConstTensor& tensor) {
  bool aligned = reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
  for (int i = 0; i + 1 < tensor.rank; ++i) aligned &= tensor.dim(i) <= 1 || tensor.stride(i) % 8 == 0;
  return aligned;
}

std::string supports_chunks(const Args& args) {
  constexpr std::int64_t kMost = 1 << 30;
  if (args.q.dtype == DType::kF32) return "takes bf16 or f16 activations, not F32";
  const std::int64_t k = args.q.dim(3);
  const std::int64_t v = args.v.dim(3);
  if (k != 64 && k != 128 && k != 256) return "takes K = 64, 128 or 256, not " + std::to_string(k);
  if (v % 32 != 0) return "takes V in multiples of 32, not " + std::to_string(v);
  if (args.qk_norm == QkNorm::kRms) return "has no RMS norm of q and k inside";
  for (const ConstTensor& tensor : {args.q, args.k, args.v, ConstTensor(args.o)}) {
    if (tensor.dtype != DType::kF32 && !rows_aligned(tensor)) return "takes rows aligned to 16 bytes";
  }
  if (args.q.dim(1) > kMost || sequence_count(args) > 65535 || args.v.dim(2) > 65535) {
    return "takes at most 65535 sequences and heads and 2^30 tokens";
  }
  return {};
}

std::string supports_wgmma(const Args& args, const Stream& stream) {
  const std::string reason = sm90_reason(properties(stream.device.index));
  if (!reason.empty()) return reason;
  if (args.q.dim(3) == 256) return "takes K = 64 or 128, not 256";
  if (args.v.dim(3) % 64 != 0) return "takes V in multiples of 64, not " + std::to_string(args.v.dim(3));
  return supports_chunks(args);
}

std::string supports_mma(const Args& args, const Stream&) { return supports_chunks(args); }

std::size_t workspace_bytes(const Args& args, const Stream& stream) { return lay_out(args, stream).bytes; }

ChunkArguments make_arguments(const Args& args, Workspace workspace, const Stream& stream) {
  ChunkArguments result{};
  result.q = view<const void>(args.q);
  result.k = view<const void>(args.k);
  result.v = view<const void>(args.v);
  result.g = view<const float>(args.g);
  result.beta = view<const float>(args.beta);
  result.gate_a = scalar_view(args.gates.a);
  result.gate_b = scalar_view(args.gates.b);
  result.a_log = scalar_view(args.gates.a_log);
  result.dt_bias = scalar_view(args.gates.dt_bias);
  result.initial_state = view<const void>(args.initial_state);
  result.final_state = view<void>(args.final_state);
  result.state_indices = static_cast<const std::int32_t*>(args.state_indices.data);
  const ConstTensor state = args.initial_state.defined() ? args.initial_state : ConstTensor(args.final_state);
  result.state_slots = state.defined() ? state.dim(0) : sequence_count(args);
  result.o = view<void>(args.o);
  result.checkpoints = view<void>(args.checkpoints);
  result.checkpoint_chunks = args.checkpoint_tokens / kChunk;
  result.checkpoint_pieces = args.checkpoints.dim(1);
  result.checkpoints_are_bf16 = args.checkpoints.dtype == DType::kBF16;
  result.fault = static_cast<std::int32_t*>(args.fault.data);
  const Layout layout = lay_out(args, stream);
  result.records = static_cast<std::byte*>(workspace.data);
  result.chunk_gates = reinterpret_cast<float*>(result.records + layout.chunk_gates);
  result.carries = reinterpret_cast<float*>(result.records + layout.carries);
  result.segment_chunks = layout.segment_chunks;
  result.segments = layout.segments;
  result.slots = layout.slots;
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
  return result;
}

// The launchers of the two passes' parts that a kernel has of its own.
using LaunchWalk = void(const ChunkArguments& args, DType dtype, const DeviceProperties& device, cudaStream_t stream);

template <LaunchWalk* kCarries, LaunchWalk* kScan>
void run_passes(const Args& args, Workspace workspace, const Stream& stream) {
  if (sequence_count(args) == 0 || args.v.dim(2) == 0) return;
  const CurrentDevice current(stream, Args::kName);
  const ChunkArguments arguments = make_arguments(args, workspace, stream);
  const DeviceProperties& device = properties(stream.device.index);
  launch_chunk_prepare(arguments, args.q.dtype, native(stream));
  if (arguments.segment_chunks > 0) {
    kCarries(arguments, args.q.dtype, device, native(stream));
    launch_chunk_carry(arguments, device, native(stream));
  }
  kScan(arguments, args.q.dtype, device, native(stream));
}

// Pieces of 64 rows of a state.
std::int64_t state_slices(const Args& args) { return args.v.dim(2) * (args.v.dim(3) / 64) * sequence_count(args); }

// One kernel saves a launch, which is most of the time of a few chunks.
std::string fused_yields(const Args& args, const Stream& stream) {
  constexpr std::int64_t kMostTokens = 256;
  if (args.q.dim(1) > kMostTokens || state_slices(args) > properties(stream.device.index).multiprocessors) {
    return "is for at most 256 tokens, of heads and sequences that fit on the device at once";
  }
  return {};
}

std::string supports_fused_pairs(const Args& args, const Stream& stream) {
  if (args.v.dim(3) % 128 != 0) return "takes V in multiples of 128, not " + std::to_string(args.v.dim(3));
  return supports_wgmma(args, stream);
}

// As measured on an H200, two consumers take 4 us a chunk for each round of heads and sequences over the
// multiprocessors, where the two passes take 3.1 us and, for what value heads share, 1.8 us, of all multiprocessors
// together.
std::string fused_pairs_yields(const Args& args, const Stream& stream) {
  const std::int64_t multiprocessors = properties(stream.device.index).multiprocessors;
  const std::int64_t slices = state_slices(args);
  const std::int64_t rounds = (slices / 2 + multiprocessors - 1) / multiprocessors;
  const double shared = static_cast<double>(args.q.dim(2)) / static_cast<double>(args.v.dim(2));
  if (slices <= multiprocessors ||
      static_cast<double>(rounds * multiprocessors) * 4.0 >= static_cast<double>(slices / 2) * (3.1 + 1.8 * shared)) {
    return "is for as many key heads as value heads, that fill the device";
  }
  return {};
}

template <int kConsumers>
void run_fused(const Args& args, Workspace, const Stream& stream) {
  if (sequence_count(args) == 0 || args.v.dim(2) == 0) return;
  const CurrentDevice current(stream, Args::kName);
  ChunkArguments arguments = make_arguments(args, {}, stream);
  arguments.segment_chunks = 0;
  const DeviceProperties& device = properties(stream.device.index);
  (args.q.dtype == DType::kBF16 ? sm90::launch_chunk_fused_bf16 : sm90::launch_chunk_fused_f16)(arguments, kConsumers,
                                                                                                device, native(stream));
}

std::string supports_tokens(const Args& args, const Stream&) { return token_by_token_supports(args); }

void run_tokens(const Args& args, Workspace, const Stream& stream) {
  run_token_by_token(args, {{}, args.checkpoints, args.checkpoint_tokens}, stream, Args::kName);
}

}  // namespace

KernelList<Args> chunk_gated_delta_rule_kernels() {
  static constexpr Kernel<Args> kKernels[] = {
      {"wgmma_fused", supports_wgmma, no_workspace<Args>, run_fused<1>, nullptr, Arithmetic::k16Bit, fused_yields},
      {"wgmma_fused_pairs", supports_fused_pairs, no_workspace<Args>, run_fused<2>, nullptr, Arithmetic::k16Bit,
       fused_pairs_yields},
      {"wgmma", supports_wgmma, workspace_bytes, run_passes<sm90::launch_chunk_carries, sm90::launch_chunk_scan>,
       nullptr, Arithmetic::k16Bit},
      {"mma", supports_mma, workspace_bytes, run_passes<launch_chunk_carries, launch_chunk_scan>, nullptr,
       Arithmetic::k16Bit},
      {"token_by_token", supports_tokens, no_workspace<Args>, run_tokens},
  };
  return kKernels;
}

}  // namespace thalweg::cu
