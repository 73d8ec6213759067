#include "cuda/expert_matvec.h"

#include <algorithm>

#include "cuda/device/expert_matvec.h"
#include "cuda/expert_lists.h"
#include "cuda/expert_matmul.h"
#include "cuda/launch.h"
#include "cuda/views.h"

namespace thalweg::cu {
namespace {

constexpr std::int64_t kMostPairs = 65535;  // blocks along y
constexpr std::int64_t kMostK = 32768;      // activations that fit into shared memory beside the weights
constexpr std::int64_t kSharedBytes = 227 * 1024;

MatvecKernel block_kernel(DType type, int lanes) {
  switch (type) {
    case DType::kQ4_0:
      return block_matvec<DType::kQ4_0>(lanes);
    case DType::kQ4_1:
      return block_matvec<DType::kQ4_1>(lanes);
    case DType::kQ5_0:
      return block_matvec<DType::kQ5_0>(lanes);
    case DType::kQ5_1:
      return block_matvec<DType::kQ5_1>(lanes);
    case DType::kQ8_0:
      return block_matvec<DType::kQ8_0>(lanes);
    case DType::kQ2_K:
      return block_matvec<DType::kQ2_K>(lanes);
    case DType::kQ3_K:
      return block_matvec<DType::kQ3_K>(lanes);
    case DType::kQ4_K:
      return block_matvec<DType::kQ4_K>(lanes);
    case DType::kQ5_K:
      return block_matvec<DType::kQ5_K>(lanes);
    case DType::kQ6_K:
      return block_matvec<DType::kQ6_K>(lanes);
    case DType::kIQ4_NL:
      return block_matvec<DType::kIQ4_NL>(lanes);
    case DType::kIQ4_XS:
      return block_matvec<DType::kIQ4_XS>(lanes);
    case DType::kMXFP4:
      return block_matvec<DType::kMXFP4>(lanes);
    default:
      return {};
  }
}

auto plain_kernel(DType type, bool aligned) -> void (*)(ExpertMatmul) {
  if (type == DType::kF32) return aligned ? plain_matvec_kernel<float, true> : plain_matvec_kernel<float, false>;
  if (type == DType::kF16) return aligned ? plain_matvec_kernel<F16, true> : plain_matvec_kernel<F16, false>;
  return aligned ? plain_matvec_kernel<Bf16, true> : plain_matvec_kernel<Bf16, false>;
}

// What a block's address has to be a multiple of.
std::int64_t block_alignment(DType type) {
  switch (type) {
    case DType::kQ4_K:
      return PackedWeights<DType::kQ4_K>::kAlign;
    case DType::kQ5_K:
      return PackedWeights<DType::kQ5_K>::kAlign;
    case DType::kIQ4_XS:
      return PackedWeights<DType::kIQ4_XS>::kAlign;
    case DType::kQ5_1:
      return PackedWeights<DType::kQ5_1>::kAlign;
    case DType::kQ4_1:
      return PackedWeights<DType::kQ4_1>::kAlign;
    case DType::kQ2_K:
      return PackedWeights<DType::kQ2_K>::kAlign;
    case DType::kMXFP4:
      return PackedWeights<DType::kMXFP4>::kAlign;
    default:
      return is_block_format(type) ? 2 : bytes_of(type, 1);
  }
}

}  // namespace

ExpertMatmul expert_matmul(const ExpertMatmulArgs& args) {
  ExpertMatmul p;
  p.weights = static_cast<const std::uint8_t*>(args.weight.data);
  p.expert_bytes = bytes_of(args.weight.dtype, args.weight.stride(0));
  p.row_bytes = bytes_of(args.weight.dtype, args.weight.stride(1));
  p.n = static_cast<int>(args.weight.dim(1));
  p.k = static_cast<int>(args.weight.dim(2));
  p.x = elements(args.x);
  p.x_per_slot = args.x.rank == 3;
  p.y = elements(args.y);
  p.ids = expert_ids(args.expert_ids, args.weight.dim(0), args.fault);
  return p;
}

ExpertMatmul expert_matmul(const LinearArgs& args) {
  ExpertMatmul p;
  p.weights = static_cast<const std::uint8_t*>(args.weight.data);
  p.row_bytes = bytes_of(args.weight.dtype, args.weight.stride(0));
  p.n = static_cast<int>(args.weight.dim(0));
  p.k = static_cast<int>(args.weight.dim(1));
  p.x = elements(args.x);
  p.y = elements(args.y);
  p.bias = static_cast<const float*>(args.bias.data);
  p.ids = one_expert(args.x.dim(0));
  return p;
}

namespace {

bool aligned_to(const ConstTensor& weight, std::int64_t align) {
  bool aligned = reinterpret_cast<std::uintptr_t>(weight.data) % static_cast<std::uintptr_t>(align) == 0;
  for (int i = 0; i + 1 < weight.rank; ++i) {
    aligned &= weight.dim(i) <= 1 || bytes_of(weight.dtype, weight.stride(i)) % align == 0;
  }
  return aligned;
}

}  // namespace

std::string aligned_blocks(const ConstTensor& weight) {
  const std::int64_t align = block_alignment(weight.dtype);
  return aligned_to(weight, align) ? "" : "takes blocks aligned to " + std::to_string(align) + " bytes";
}
std::string aligned_rows(const ConstTensor& weight) {
  return aligned_to(weight, 16) ? "" : "takes rows aligned to 16 bytes";
}

std::string matvec_supports(const ConstTensor& weight, std::int64_t pairs) {
  if (pairs > kMostPairs) return "takes at most " + std::to_string(kMostPairs) + " rows";
  if (weight.dim(weight.rank - 1) > kMostK && is_block_format(weight.dtype)) {
    return "takes K up to " + std::to_string(kMostK);
  }
  return aligned_blocks(weight);
}

void run_matvec(const ExpertMatmul& p, DType weight, const Stream& stream, std::string_view operation) {
  const int pairs = p.ids.pairs;
  if (pairs == 0 || p.n == 0) return;
  const DeviceProperties& device = properties(stream.device.index);
  const auto launch = [&](void (*kernel)(ExpertMatmul), dim3 grid, std::size_t shared) {
    // Some is taken by the kernels themselves.
    if (shared > 40 * 1024) allow_shared_memory(reinterpret_cast<const void*>(kernel), shared, operation);
    launch_early(kernel, grid, kMatvecWarps * kWarpSize, shared, device, native(stream), operation, p);
  };
  if (!is_block_format(weight)) {
    const std::int64_t bits =
        reinterpret_cast<std::intptr_t>(p.weights) | p.expert_bytes | p.row_bytes | bytes_of(weight, p.k);
    const dim3 grid(static_cast<unsigned>((p.n + kPlainBlockRows - 1) / kPlainBlockRows), static_cast<unsigned>(pairs));
    launch(plain_kernel(weight, bits % 16 == 0 && p.x.fours), grid, 0);
    return;
  }
  const int lanes = p.k <= 16 * 32 ? 16 : 32;
  const int rows = lanes == 16 ? MatvecTile<16>::kBlockRows : MatvecTile<32>::kBlockRows;
  const MatvecKernel chosen = block_kernel(weight, lanes);
  const std::size_t shared =
      static_cast<std::size_t>(p.k / 32) * sizeof(FixedUnit) + static_cast<std::size_t>(chosen.shared_bytes);
  const std::int64_t tiles = static_cast<std::int64_t>(pairs) * ((p.n + rows - 1) / rows);
  // As many blocks as run at a time, and enough that none has more pairs than it can keep.
  const std::int64_t together = device.multiprocessors * std::clamp<std::int64_t>(kSharedBytes / (shared + 1024), 1, 3);
  const std::int64_t blocks =
      std::max(std::min(tiles, together), static_cast<std::int64_t>(pairs / (kMostBlockPairs - 2) + 1));
  launch(chosen.kernel, static_cast<unsigned>(blocks), shared);
}

}  // namespace thalweg::cu
