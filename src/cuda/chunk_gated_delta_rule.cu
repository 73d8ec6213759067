#include <algorithm>
#include <string>

#include "cuda/chunk_kernels.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"
#include "cuda/views.h"

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

std::int64_t record_slots(const Args& args) {
  return SequenceMap::slots(args.cu_seqlens.defined(), sequence_count(args), args.q.dim(1));
}

// Whether every row of 16-bit elements begins at a multiple of 16 bytes.
bool rows_aligned(const ConstTensor& tensor) {
  bool aligned = reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
  for (int i = 0; i + 1 < tensor.rank; ++i) aligned &= tensor.dim(i) <= 1 || tensor.stride(i) % 8 == 0;
  return aligned;
}

std::string supports_chunks(const Args& args, const Stream& stream) {
  constexpr std::int64_t kMost = 1 << 30;
  if (args.q.dtype == DType::kF32) return "takes bf16 or f16 activations, not F32";
  const std::int64_t k = args.q.dim(3);
  const std::int64_t v = args.v.dim(3);
  if (k != 64 && k != 128) return "takes K = 64 or 128, not " + std::to_string(k);
  if (v % 64 != 0) return "takes V in multiples of 64, not " + std::to_string(v);
  if (args.qk_norm == QkNorm::kRms) return "has no RMS norm of q and k inside";
  for (const ConstTensor& tensor : {args.q, args.k, args.v, ConstTensor(args.o)}) {
    if (tensor.dtype != DType::kF32 && !rows_aligned(tensor)) return "takes rows aligned to 16 bytes";
  }
  if (args.q.dim(1) > kMost || sequence_count(args) > 65535 || args.v.dim(2) > 65535) {
    return "takes at most 65535 sequences and heads and 2^30 tokens";
  }
  (void)stream;
  return {};
}

std::string supports_wgmma(const Args& args, const Stream& stream) {
  const DeviceProperties& device = properties(stream.device.index);
  if (device.major != 9 || device.minor != 0) {
    return "needs compute capability 9.0, the device has " + std::to_string(device.major) + "." +
           std::to_string(device.minor);
  }
  return supports_chunks(args, stream);
}

std::size_t record_bytes(const Args& args, const Stream&) {
  return static_cast<std::size_t>(record_slots(args) * args.v.dim(2) * ChunkRecord::kBytes);
}

ChunkArguments make_arguments(const Args& args, Workspace workspace) {
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
  result.fault = static_cast<std::int32_t*>(args.fault.data);
  result.records = static_cast<std::byte*>(workspace.data);
  result.map = {static_cast<const std::int32_t*>(args.cu_seqlens.data), static_cast<int>(sequence_count(args)),
                static_cast<int>(args.q.dim(1))};
  result.slots = record_slots(args);
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

void run_wgmma(const Args& args, Workspace workspace, const Stream& stream) {
  if (sequence_count(args) == 0 || args.v.dim(2) == 0) return;
  const CurrentDevice current(stream, Args::kName);
  const ChunkArguments arguments = make_arguments(args, workspace);
  launch_chunk_prepare(arguments, args.q.dtype, native(stream));
  sm90::launch_chunk_scan(arguments, args.q.dtype, properties(stream.device.index).multiprocessors, native(stream));
}

}  // namespace

KernelList<Args> chunk_gated_delta_rule_kernels() {
  static constexpr Kernel<Args> kKernels[] = {
      {"wgmma", supports_wgmma, record_bytes, run_wgmma, nullptr, Arithmetic::k16Bit},
  };
  return kKernels;
}

}  // namespace thalweg::cu
