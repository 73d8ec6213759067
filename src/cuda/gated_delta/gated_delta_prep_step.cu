#include <algorithm>
#include <limits>

#include "core/arena.h"
#include "core/drafts.h"
#include "cuda/gated_delta/decode.h"
#include "cuda/gated_delta/gated_delta.h"
#include "cuda/gated_delta/prep_step.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/row_hint.h"
#include "cuda/tuning.h"

namespace thalweg::cu {
namespace {

struct Sizes {
  std::int64_t batch;   // sequences
  std::int64_t tokens;  // of a row of x
  std::int64_t hk, hv, k, v;

  explicit Sizes(const GatedDeltaPrepStepArgs& args)
      : batch(args.cu_seqlens.defined() ? args.cu_seqlens.dim(0) - 1 : args.x.dim(0)),
        tokens(args.x.dim(1)),
        hv(args.state_in.dim(1)),
        k(args.state_in.dim(args.state_layout == StateLayout::kVK ? 3 : 2)),
        v(args.state_in.dim(args.state_layout == StateLayout::kVK ? 2 : 3)) {
    hk = (args.x.dim(2) - hv * v) / (2 * k);
  }
  std::int64_t ratio() const { return hv / hk; }
};

bool is_vk(const GatedDeltaPrepStepArgs& args) { return args.state_layout == StateLayout::kVK; }

PrepStep parameters(const GatedDeltaPrepStepArgs& args, const Sizes& s, const PrepStepKernel& kernel, int row_blocks) {
  PrepStep p;
  p.x = elements(args.x);
  p.conv_weight = elements(args.conv_weight);
  p.conv_state = elements(args.conv_state);
  p.gates = gate_views(args.gates);
  p.norm = {args.qk_norm, args.qk_norm_eps, elements(args.q_norm_weight), elements(args.k_norm_weight)};
  p.state_in = elements(args.state_in);
  p.state_out = elements(args.state_out);
  p.snapshots = elements(args.snapshots);
  p.z = elements(args.z);
  p.norm_weight = elements(args.norm_weight);
  p.y = elements(args.y);
  p.sequences = {integers(args.cu_seqlens), integers(args.state_indices),
                 args.fault.defined() ? static_cast<std::int32_t*>(args.fault.data) : nullptr, s.tokens,
                 args.state_in.dim(0)};
  p.hk = static_cast<int>(s.hk);
  p.hv = static_cast<int>(s.hv);
  p.ratio = static_cast<int>(s.ratio());
  p.v_size = static_cast<int>(s.v);
  p.taps = args.conv_weight.defined() ? static_cast<int>(args.conv_weight.dim(1)) : 0;
  p.tile_warps = static_cast<int>(s.v / row_blocks / kernel.warp_rows);
  p.row_blocks = row_blocks;
  p.replay_x = elements(args.replay_x);
  p.replay_gates = gate_views({args.replay_a, args.replay_b, args.gates.a_log, args.gates.dt_bias});
  p.replay_counts = integers(args.replay_counts);
  p.most_replayed = args.replay_x.defined() ? static_cast<int>(args.replay_x.dim(1)) : 0;
  p.drafts = args.drafts;
  p.block_tokens = static_cast<int>(std::clamp<std::int64_t>(s.tokens + p.most_replayed, 1, kBlockTokens));
  p.head_map = args.head_map;
  p.scale = resolve_scale(args.scale, s.k);
  p.norm_eps = args.norm_eps;
  return p;
}

std::size_t shared_memory(const PrepStep& p, const Sizes& s) {
  return TokenMemory::bytes(p.block_tokens, static_cast<int>(s.k), p.v_size / p.row_blocks);
}

// Whether a head can be split into that many row blocks of whole warps, not more than a block can have.
bool can_split(const Sizes& s, const PrepStepKernel& kernel, int row_blocks) {
  const std::int64_t warps = s.v / kernel.warp_rows;
  return warps % row_blocks == 0 && warps / row_blocks <= kMaxWarps;
}

// ---- block: one block for each key head of a sequence

int block_row_blocks(const Sizes& s, const PrepStepKernel& kernel) {
  int row_blocks = 1;
  while (!can_split(s, kernel, row_blocks)) ++row_blocks;
  return row_blocks;
}

PrepStepKernel block_kernel(const GatedDeltaPrepStepArgs& args, const Sizes& s) {
  return is_vk(args) ? prep_step_kernel_vk(s.k) : prep_step_kernel_kv(s.k);
}

std::string block_supports(const GatedDeltaPrepStepArgs& args, const Stream&) {
  const Sizes s(args);
  const bool fits = s.batch * s.hk <= std::numeric_limits<std::int32_t>::max();
  return fits ? "" : "needs fewer than 2^31 key heads";
}

// Outputs before their norm, [B,T,HV,V], if the block processes a head in several passes.
float* take_outputs(const GatedDeltaPrepStepArgs& args, Arena& arena) {
  const Sizes s(args);
  if (!args.z.defined() || block_row_blocks(s, block_kernel(args, s)) == 1) return nullptr;
  return arena.take<float>(args.x.dim(0) * s.tokens * s.hv * s.v);
}

std::size_t block_workspace(const GatedDeltaPrepStepArgs& args, const Stream&) {
  Arena arena;
  take_outputs(args, arena);
  return arena.used();
}

void run_blocks(const GatedDeltaPrepStepArgs& args, Workspace workspace, const Stream& stream) {
  const Sizes s(args);
  if (s.batch == 0) return;
  const CurrentDevice current(stream, args.kName);
  const PrepStepKernel chosen = block_kernel(args, s);
  PrepStep p = parameters(args, s, chosen, block_row_blocks(s, chosen));
  Arena arena(workspace);
  p.outputs = take_outputs(args, arena);
  constexpr unsigned kThreads = kMaxWarps * kWarpSize;
  chosen.kernel<<<static_cast<unsigned>(s.batch * s.hk), kThreads, shared_memory(p, s), native(stream)>>>(p);
  check(cudaGetLastError(), args.kName);
}

// ---- cluster: a cluster for each key head of a sequence

constexpr std::int64_t kMaxCluster = 8;  // the portable cluster size

PrepStepKernel cluster_kernel(const GatedDeltaPrepStepArgs& args, const Sizes& s) {
  return is_vk(args) ? prep_step_cluster_kernel_vk(s.k) : prep_step_cluster_kernel_kv(s.k);
}

// The fewest row blocks that keep the device busy, as far as a cluster can hold them: with more, every block prepares
// the same q and k for fewer rows of the state. 0 if the key head does not fit into a cluster.
int cluster_row_blocks(const Sizes& s, const PrepStepKernel& kernel, int multiprocessors) {
  int chosen = 0;
  for (int row_blocks = 1; row_blocks * s.ratio() <= kMaxCluster; ++row_blocks) {
    if (!can_split(s, kernel, row_blocks)) continue;
    constexpr std::int64_t kNumerator = tuning::gated_delta::kClusterBusyNumerator;
    const std::int64_t blocks = s.batch * s.hv * chosen;
    if (chosen > 0 && blocks * tuning::gated_delta::kClusterBusyDenominator >= kNumerator * multiprocessors) break;
    chosen = row_blocks;
  }
  return chosen;
}

std::string cluster_supports(const GatedDeltaPrepStepArgs& args, const Stream& stream) {
  const Sizes s(args);
  const DeviceProperties& device = properties(stream.device.index);
  const PrepStepKernel kernel = cluster_kernel(args, s);
  if (kernel.kernel == nullptr) return "is not in this build";
  if (const std::string reason = sm90_reason(device); !reason.empty()) return reason;
  if (s.batch * s.hk > std::numeric_limits<std::int32_t>::max() / kMaxCluster) return "needs fewer than 2^28 key heads";
  return cluster_row_blocks(s, kernel, device.multiprocessors) > 0 ? "" : "needs a key head to fit into 8 blocks";
}

template <class Parameters>
void launch(void (*kernel)(Parameters), const Parameters& p, dim3 blocks, dim3 members, std::int64_t threads,
            std::size_t shared_bytes, const Stream& stream) {
  pdl_launch(kernel, blocks, members, dim3(static_cast<unsigned>(threads)), shared_bytes,
             properties(stream.device.index), native(stream), GatedDeltaPrepStepArgs::kName, p);
}

void run_clusters(const GatedDeltaPrepStepArgs& args, Workspace, const Stream& stream) {
  const Sizes s(args);
  if (s.batch == 0) return;
  const CurrentDevice current(stream, args.kName);
  const PrepStepKernel chosen = cluster_kernel(args, s);
  const int row_blocks = cluster_row_blocks(s, chosen, properties(stream.device.index).multiprocessors);
  const PrepStep p = parameters(args, s, chosen, row_blocks);
  const std::int64_t members = s.ratio() * row_blocks;
  // A thread per channel of q, k and v, unless blocks are many.
  const std::int64_t channels = 2 * s.k + s.v / row_blocks;
  const std::int64_t limit = s.batch * s.hk * members > 2 * properties(stream.device.index).multiprocessors ? 256 : 384;
  const std::int64_t threads =
      std::clamp((channels + kWarpSize - 1) / kWarpSize * kWarpSize, std::int64_t{p.tile_warps * kWarpSize}, limit);
  launch(chosen.kernel, p, dim3(static_cast<unsigned>(s.batch * s.hk * members)), dim3(static_cast<unsigned>(members)),
         threads, shared_memory(p, s), stream);
}

// ---- decode and decode_together: clusters for a few tokens

// The launch shape of kernel decode_step.
struct DecodeStepShape {
  int row_blocks = 0;  // of a head; 0 if the key head does not fit into a cluster
  bool narrow = false;
  int warp_rows = 0;
  std::int64_t threads = 0;  // of a block
};

// The fewest row blocks of at most kStepMaxRows rows that keep the device busy, as far as a cluster can hold them.
// Small ones have four rows to a warp and a thread for each channel, for the lowest latency of a token.
DecodeStepShape decode_step_shape(const Sizes& s, bool together, int multiprocessors) {
  using namespace tuning::gated_delta;
  DecodeStepShape shape;
  shape.warp_rows = StateTile<128, StateLayout::kVK>::kWarpV;
  for (int row_blocks = 1; row_blocks * s.ratio() <= kMaxCluster; row_blocks *= 2) {
    if (s.v % (row_blocks * shape.warp_rows) != 0) break;
    const std::int64_t blocks = s.batch * s.hv * shape.row_blocks;
    if (shape.row_blocks > 0 && s.v / shape.row_blocks <= kStepMaxRows &&
        blocks * kBusyDenominator >= std::int64_t{kBusyNumerator} * multiprocessors) {
      break;
    }
    shape.row_blocks = row_blocks;
  }
  if (s.v / shape.row_blocks > kStepMaxRows) shape.row_blocks = 0;
  if (shape.row_blocks == 0) return shape;
  const std::int64_t rows = s.v / shape.row_blocks;
  shape.narrow = !together && rows <= kStepNarrowRows;
  if (shape.narrow) shape.warp_rows = StateTile<128, StateLayout::kVK, 1>::kWarpV;
  shape.threads = shape.narrow ? (2 * s.k + rows + 2 * kWarpSize - 1) / kWarpSize * kWarpSize : kMaxWarps * kWarpSize;
  shape.threads = std::max(shape.threads, rows / shape.warp_rows * kWarpSize);
  return shape;
}

// For kernels decode, decode_together and split: everything but the number of tokens.
std::string decode_tensors_reason(const GatedDeltaPrepStepArgs& args) {
  const Sizes s(args);
  if (s.k != 64 && s.k != 128) return "needs K to be 64 or 128, not " + std::to_string(s.k);
  if (!is_vk(args)) return "needs states [V,K]";
  if (args.conv_weight.defined() && args.conv_weight.dim(1) > kDecodeTaps) return "needs at most 4 taps";
  if (args.snapshots.defined() && args.snapshots.dtype != args.state_in.dtype) {
    return "needs snapshots to have the dtype of the states";
  }
  for (const ConstTensor& tensor : {args.state_in, ConstTensor(args.state_out), ConstTensor(args.snapshots)}) {
    if (tensor.defined() && !elements(tensor).fours) return "needs rows aligned to four elements";
  }
  for (const ConstTensor& tensor :
       {args.x, args.conv_weight, ConstTensor(args.conv_state), args.gates.a, args.gates.b, args.q_norm_weight,
        args.k_norm_weight, args.state_in, ConstTensor(args.state_out), ConstTensor(args.snapshots), args.z,
        ConstTensor(args.y), ConstTensor(args.replay_x), ConstTensor(args.replay_a), ConstTensor(args.replay_b)}) {
    if (!is_compact(tensor)) return "needs strides below 2^31 elements";
  }
  return s.batch > 65535 || s.hv > 65535 ? "needs at most 65535 sequences and heads" : "";
}

// Whether the tokens of a sequence are bounded by R: those that it replays, a first one, and drafts.
bool replays_drafts(const GatedDeltaPrepStepArgs& args) { return args.drafts && args.replay_x.defined(); }
// Of a sequence.
std::int64_t most_tokens(const GatedDeltaPrepStepArgs& args) {
  return replays_drafts(args) ? 2 * args.replay_x.dim(1) + 1 : args.x.dim(1);
}

std::string tokens_reason(const GatedDeltaPrepStepArgs& args) {
  const std::int64_t tokens = most_tokens(args);
  if (replays_drafts(args)) {
    return tokens > kTogether ? "needs R to be at most 3, not " + std::to_string(args.replay_x.dim(1)) : "";
  }
  if (std::string reason = no_drafts_reason(args); !reason.empty()) return reason;
  return tokens < 1 || tokens > kTogether ? "needs 1 to 8 tokens, not " + std::to_string(tokens) : "";
}

std::string decode_supports(const GatedDeltaPrepStepArgs& args, const Stream& stream) {
  const DeviceProperties& device = properties(stream.device.index);
  if (decode_step_kernel(128, DType::kF32, Tokens::kAll, false) == nullptr) return "is not in this build";
  if (const std::string reason = sm90_reason(device); !reason.empty()) return reason;
  if (std::string reason = no_drafts_reason(args); !reason.empty()) return reason;
  if (std::string reason = tokens_reason(args); !reason.empty()) return reason;
  if (std::string reason = decode_tensors_reason(args); !reason.empty()) return reason;
  const bool fits = decode_step_shape(Sizes(args), true, device.multiprocessors).row_blocks > 0;
  return fits ? "" : "needs a key head to fit into 8 blocks";
}

DecodeStep decode_parameters(const GatedDeltaPrepStepArgs& args, const Sizes& s) {
  DecodeStep p;
  p.x = compact<2>(args.x);
  p.conv_state = compact<2>(args.conv_state);
  p.conv_weight = compact<1>(args.conv_weight);
  p.slots = slot_table(args.state_indices, args.fault, args.state_in.dim(0));
  p.tokens = static_cast<int>(s.tokens);
  p.most_tokens = static_cast<int>(most_tokens(args));
  p.hk = static_cast<int>(s.hk);
  p.ratio = static_cast<int>(s.ratio());
  p.v_size = static_cast<int>(s.v);
  p.taps = args.conv_weight.defined() ? static_cast<int>(args.conv_weight.dim(1)) : 0;
  p.head_map = args.head_map;
  p.state_in = compact<3>(args.state_in);
  p.gates = compact_gate_views(args.gates);
  p.z = compact<3>(args.z);
  p.norm_weight = compact<1>(args.norm_weight);
  p.scale = resolve_scale(args.scale, s.k);
  p.norm_eps = args.norm_eps;
  p.norm = {args.qk_norm, args.qk_norm_eps, compact<1>(args.q_norm_weight), compact<1>(args.k_norm_weight)};
  p.state_out = compact<3>(args.state_out);
  p.y = compact<3>(args.y);
  p.snapshots = compact<4>(args.snapshots);
  p.cu_seqlens = integers(args.cu_seqlens);
  p.replay_counts = integers(args.replay_counts);
  p.most_replayed = args.replay_x.defined() ? static_cast<int>(args.replay_x.dim(1)) : 0;
  p.drafts = args.drafts;
  p.replay_x = compact<2>(args.replay_x);
  p.replay_gates = compact_gate_views({args.replay_a, args.replay_b, args.gates.a_log, args.gates.dt_bias});
  return p;
}

void launch_decode(const GatedDeltaPrepStepArgs& args, Tokens tokens, const Stream& stream) {
  const Sizes s(args);
  if (s.batch == 0) return;
  const CurrentDevice current(stream, args.kName);
  const DecodeStepShape shape =
      decode_step_shape(s, tokens == Tokens::kAll, properties(stream.device.index).multiprocessors);
  const DecodeStepKernel kernel = decode_step_kernel(s.k, args.state_in.dtype, tokens, shape.narrow);
  DecodeStep p = decode_parameters(args, s);
  p.tile_warps = static_cast<int>(s.v / shape.row_blocks / shape.warp_rows);
  p.row_blocks = shape.row_blocks;
  const dim3 members(static_cast<unsigned>(shape.row_blocks), static_cast<unsigned>(s.ratio()));
  const dim3 blocks(members.x, static_cast<unsigned>(s.hv), static_cast<unsigned>(s.batch));
  const std::size_t memory = decode_memory_bytes(s.k, tokens, p.most_tokens, s.v / shape.row_blocks, p.tile_warps) +
                             (s.k == 64 ? DecodeStepMemory<64>::bytes(shape.threads / kWarpSize)
                                        : DecodeStepMemory<128>::bytes(shape.threads / kWarpSize));
  launch(kernel, p, blocks, members, shape.threads, memory, stream);
}

void run_decode(const GatedDeltaPrepStepArgs& args, Workspace, const Stream& stream) {
  launch_decode(args, Tokens::kOneByOne, stream);
}

std::string together_supports(const GatedDeltaPrepStepArgs& args, const Stream& stream) {
  if (Sizes(args).tokens < 2) return "needs 2 to 8 tokens, not " + std::to_string(Sizes(args).tokens);
  if (args.snapshots.defined()) return "does not take snapshots";
  return decode_supports(args, stream);
}

void run_together(const GatedDeltaPrepStepArgs& args, Workspace, const Stream& stream) {
  launch_decode(args, Tokens::kAll, stream);
}

// ---- split: for many sequences, in several launches

std::string split_supports(const GatedDeltaPrepStepArgs& args, const Stream&) {
  const Sizes s(args);
  if (std::string reason = tokens_reason(args); !reason.empty()) return reason;
  if (std::string reason = decode_tensors_reason(args); !reason.empty()) return reason;
  if (s.v != kStepV) return "needs V to be 128, not " + std::to_string(s.v);
  const std::int64_t most_ratio = s.k == 64 ? kStepMostRatio<64> : kStepMostRatio<128>;
  if (s.ratio() > most_ratio) {
    return "needs at most " + std::to_string(most_ratio) + " value heads to a key head, not " +
           std::to_string(s.ratio());
  }
  for (const ConstTensor& tensor : {args.state_in, ConstTensor(args.state_out), ConstTensor(args.snapshots)}) {
    if (tensor.defined() && !rows_aligned_to(tensor, 16)) return "needs rows of states aligned to 16 bytes";
  }
  if (args.x.dim(2) > std::numeric_limits<std::int32_t>::max()) return "needs fewer than 2^31 channels";
  for (const ConstTensor& inputs : {args.x, ConstTensor(args.replay_x)}) {
    if (inputs.defined() && !elements(inputs).fours) return "needs rows of inputs aligned to four elements";
  }
  for (const ConstTensor& of_outputs : {args.z, ConstTensor(args.y), args.norm_weight}) {
    if (args.z.defined() && !elements(of_outputs).fours) return "needs z, y and their norm aligned to four elements";
  }
  if (!args.conv_weight.defined()) return "";
  if (args.conv_weight.dim(1) != kDecodeTaps) return "needs 4 taps, not " + std::to_string(args.conv_weight.dim(1));
  const std::int64_t four = bytes_of(args.conv_state.dtype, 4);
  const bool contiguous = args.conv_weight.stride(0) == kDecodeTaps && args.conv_state.stride(1) == kDecodeTaps - 1;
  const bool aligned = elements(args.conv_weight).fours && args.conv_state.stride(0) % 4 == 0 &&
                       address_alignment(args.conv_state) % four == 0;
  return contiguous && aligned ? "" : "needs contiguous convolutions, aligned to four elements";
}

// Takes what launches hand over.
void take_prepared(const GatedDeltaPrepStepArgs& args, Arena& arena, DecodeStep& p) {
  const Sizes s(args);
  const std::int64_t tokens = s.batch * most_tokens(args);
  p.keys = arena.take<float>(tokens * s.hk * 2 * s.k);
  p.values = arena.take<float>(tokens * s.hv * s.v);
  p.step_gates = arena.take<float2>(tokens * s.hv);
  if (most_tokens(args) > 1) p.matrices = arena.take<TokenMatrices>(s.batch * s.hv);
  if (args.z.defined()) p.outputs = arena.take<float>(tokens * s.hv * s.v);
}

std::size_t split_workspace(const GatedDeltaPrepStepArgs& args, const Stream&) {
  Arena arena;
  DecodeStep p;
  take_prepared(args, arena, p);
  return arena.used();
}

void run_split(const GatedDeltaPrepStepArgs& args, Workspace workspace, const Stream& stream) {
  const Sizes s(args);
  if (s.batch == 0) return;
  const CurrentDevice current(stream, args.kName);
  const SplitStep chosen = split_step({.k = s.k,
                                       .inputs = args.x.dtype,
                                       .state = args.state_in.dtype,
                                       .tokens = most_tokens(args),
                                       .snapshots = args.snapshots.defined(),
                                       .replays = replays_drafts(args),
                                       .few = s.batch * s.hv <= properties(stream.device.index).multiprocessors});
  Arena arena(workspace);
  DecodeStep p = decode_parameters(args, s);
  take_prepared(args, arena, p);
  const auto launch_kernel = [&](DecodeStepKernel kernel, dim3 blocks, int threads) {
    pdl_launch(kernel, blocks, dim3(static_cast<unsigned>(threads)), 0, properties(stream.device.index), native(stream),
               args.kName, p);
  };
  const auto blocks_of = [](std::int64_t count, int block) {
    return static_cast<unsigned>((count + block - 1) / block);
  };
  const auto sequences = static_cast<unsigned>(s.batch);
  const unsigned input_blocks =
      blocks_of(2 * s.hk * s.k, chosen.inputs_channels) + blocks_of(s.hv * s.v, chosen.inputs_channels);
  launch_kernel(chosen.inputs, dim3(input_blocks, sequences), chosen.inputs_threads);
  const dim3 heads(static_cast<unsigned>(s.ratio() * chosen.head_blocks), static_cast<unsigned>(s.hk), sequences);
  launch_kernel(chosen.states, heads, chosen.states_threads);
  if (chosen.norm == nullptr || !args.z.defined()) return;
  const std::int64_t own = replays_drafts(args) ? args.replay_x.dim(1) + 1 : s.tokens;  // of a sequence, at most
  launch_kernel(chosen.norm, dim3(blocks_of(s.hv, chosen.norm_heads), static_cast<unsigned>(own), sequences),
                chosen.norm_threads);
}

// ---- costs

// A call's time: of the launch, of the key heads, of the tokens after the first, of the snapshots.
// `wait`: of a token for the one before, where key heads are few.
double step_cost(const GatedDeltaPrepStepArgs& args, const Stream& stream, double call, double key_head, double token,
                 double wait) {
  const Sizes s(args);
  const int multiprocessors = std::max(1, properties(stream.device.index).multiprocessors);
  const double key_heads = static_cast<double>(s.batch * s.hk) / multiprocessors;
  const auto tokens = static_cast<double>(most_tokens(args));
  const double more = args.snapshots.defined() ? key_heads * tokens * tuning::gated_delta::kStepSnapshot
                                               : std::max(tokens - 1.0, 0.0) * std::max(wait, key_heads * token);
  return call + key_heads * key_head + more;
}

// A row's sums in decode, decode_together and cluster depend on how many blocks a head is divided into.
double split_cost(const GatedDeltaPrepStepArgs& args, const Stream& stream) {
  using namespace tuning::gated_delta;
  const bool is_16bit = args.state_in.dtype == DType::kBF16;
  return step_cost(args, stream, is_16bit ? kStepSplitCall16 : kStepSplitCall,
                   is_16bit ? kStepSplitKeyHead16 : kStepSplitKeyHead, kStepSplitToken, kStepSplitWait);
}
double together_cost(const GatedDeltaPrepStepArgs& args, const Stream& stream) {
  using namespace tuning::gated_delta;
  return cost_by_count(step_cost(args, stream, kStepTogetherCall, kStepDecodeKeyHead, kStepTogetherToken, 0.0), stream);
}
double decode_cost(const GatedDeltaPrepStepArgs& args, const Stream& stream) {
  using namespace tuning::gated_delta;
  const double key_head = args.state_in.dtype == DType::kBF16 ? kStepDecodeKeyHead16 : kStepDecodeKeyHead;
  return cost_by_count(step_cost(args, stream, kStepDecodeCall, key_head, kStepDecodeToken, kStepDecodeWait), stream);
}
double cluster_cost(const GatedDeltaPrepStepArgs& args, const Stream& stream) {
  using namespace tuning::gated_delta;
  return cost_by_count(
      step_cost(args, stream, kStepClusterCall, kStepClusterKeyHead, kStepDecodeToken, kStepDecodeWait), stream);
}
double block_cost(const GatedDeltaPrepStepArgs& args, const Stream& stream) {
  using namespace tuning::gated_delta;
  return step_cost(args, stream, kStepBlockCall, kStepBlockKeyHead, kStepDecodeToken, kStepDecodeWait);
}

constexpr Kernel<GatedDeltaPrepStepArgs> kKernels[] = {
    {"split", split_supports, split_workspace, run_split, nullptr, Arithmetic::kF32, split_cost},
    {"decode_together", together_supports, no_workspace<GatedDeltaPrepStepArgs>, run_together, nullptr,
     Arithmetic::kF32, together_cost},
    {"decode", decode_supports, no_workspace<GatedDeltaPrepStepArgs>, run_decode, nullptr, Arithmetic::kF32,
     decode_cost},
    {"cluster", cluster_supports, no_workspace<GatedDeltaPrepStepArgs>, run_clusters, nullptr, Arithmetic::kF32,
     cluster_cost},
    {"block", block_supports, block_workspace, run_blocks, nullptr, Arithmetic::kF32, block_cost}};

}  // namespace

KernelList<GatedDeltaPrepStepArgs> gated_delta_prep_step_kernels() { return kKernels; }

}  // namespace thalweg::cu
