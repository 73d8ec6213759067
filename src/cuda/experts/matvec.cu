#include "cuda/experts/matvec.h"

#include <algorithm>

#include "cuda/common/tensor_view.h"
#include "cuda/experts/expert_lists.h"
#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/formats/dispatch.h"
#include "cuda/experts/matvec_kernel.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr std::int64_t kMostPairs = 65535;  // gridDim.y
constexpr std::int64_t kMostK = 32768;      // activations beyond this do not fit into shared memory beside the weights
constexpr int kUsualPasses = 32;            // per warp

MatvecKernel block_kernel(DType type, bool bulk) {
  return dispatch_block_format(type, [&]<DType kType>() { return block_matvec<kType>(bulk); });
}

auto plain_kernel(DType type, bool aligned) -> void (*)(ExpertMatmul) {
  if (type == DType::kF32) return aligned ? plain_matvec_kernel<float, true> : plain_matvec_kernel<float, false>;
  if (type == DType::kF16) return aligned ? plain_matvec_kernel<F16, true> : plain_matvec_kernel<F16, false>;
  return aligned ? plain_matvec_kernel<Bf16, true> : plain_matvec_kernel<Bf16, false>;
}

// What the addresses of weights must be multiples of, in bytes: those of blocks, or of single elements.
int block_alignment(DType type) {
  return dispatch_format(type, [&]<DType kType>() {
    return is_block_format(kType) ? PackedWeights<kType>::kAlign : static_cast<int>(bytes_of(kType, 1));
  });
}

// Bytes between elements of dimension `dim`; 0 if it has one.
std::int64_t step_bytes(const ConstTensor& weight, int dim) {
  return weight.dim(dim) > 1 ? bytes_of(weight.dtype, weight.stride(dim)) : 0;
}

}  // namespace

ExpertMatmul expert_matmul(const ExpertMatmulArgs& args) {
  ExpertMatmul p;
  p.weights = static_cast<const std::uint8_t*>(args.weight.data);
  p.expert_bytes = step_bytes(args.weight, 0);
  p.row_bytes = step_bytes(args.weight, 1);
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
  p.row_bytes = step_bytes(args.weight, 0);
  p.n = static_cast<int>(args.weight.dim(0));
  p.k = static_cast<int>(args.weight.dim(1));
  p.x = elements(args.x);
  p.y = elements(args.y);
  p.bias = static_cast<const float*>(args.bias.data);
  p.ids = one_expert(args.x.dim(0));
  return p;
}

std::string aligned_blocks(const ConstTensor& weight) {
  const int align = block_alignment(weight.dtype);
  return rows_aligned_to(weight, align) ? "" : "takes blocks aligned to " + std::to_string(align) + " bytes";
}
std::string aligned_rows(const ConstTensor& weight) {
  return rows_aligned_to(weight, 16) ? "" : "takes rows aligned to 16 bytes";
}

std::string matvec_supports(const ConstTensor& weight, std::int64_t pairs) {
  if (pairs > kMostPairs) return "takes at most " + std::to_string(kMostPairs) + " rows";
  if (weight.dim(weight.rank - 1) > kMostK && is_block_format(weight.dtype)) {
    return "takes K up to " + std::to_string(kMostK);
  }
  return aligned_blocks(weight);
}

namespace {

template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, std::size_t shared, const DeviceProperties& device,
            const Stream& stream, std::string_view operation, const Arguments&... arguments) {
  // The kernels have static shared memory too.
  if (shared > 40 * 1024) allow_shared_memory(reinterpret_cast<const void*>(kernel), shared, operation);
  pdl_launch(kernel, grid, kMatvecThreads, shared, device, native(stream), operation, arguments...);
}

void run_plain(const ExpertMatmul& p, const ConstTensor& weight, const DeviceProperties& device, const Stream& stream,
               std::string_view operation) {
  const bool aligned = rows_aligned_to(weight, 16) && bytes_of(weight.dtype, p.k) % 16 == 0;
  const dim3 grid(static_cast<unsigned>((p.n + kPlainBlockRows - 1) / kPlainBlockRows),
                  static_cast<unsigned>(p.ids.pairs));
  launch(plain_kernel(weight.dtype, aligned && p.x.fours), grid, 0, device, stream, operation, p);
}

// Whether the copy engine brings the rows. It takes multiples of 16 bytes. For short rows, several of which are a pass,
// cp.async is faster.
bool uses_bulk_copies(const ConstTensor& weight, int k, int lanes, const DeviceProperties& device) {
  return device.bulk_copies && lanes == kWarpSize && rows_aligned_to(weight, 16) && bytes_of(weight.dtype, k) % 16 == 0;
}

}  // namespace

void run_matvec(const ExpertMatmul& p, const ConstTensor& weight, const Stream& stream, std::string_view operation) {
  const int pairs = p.ids.pairs;
  if (pairs == 0 || p.n == 0) return;
  const DeviceProperties& device = properties(stream.device.index);
  if (!is_block_format(weight.dtype)) return run_plain(p, weight, device, stream, operation);

  const int k_blocks = p.k / 32;
  MatvecShape shape{};
  shape.lanes = row_lanes(k_blocks);
  shape.step = kWarpSize / shape.lanes;
  const int segment_blocks = kLaneBlocks * shape.lanes;
  shape.split = 1;
  while (shape.split < kMatvecWarps && shape.split * segment_blocks < k_blocks) shape.split *= 2;
  shape.groups = kMatvecWarps / shape.split;
  const int pass_rows = kPassSteps * shape.step;
  shape.stage_bytes =
      pass_rows * row_pitch(static_cast<int>(bytes_of(weight.dtype, 32 * std::min(segment_blocks, k_blocks))));
  const MatvecKernel kernel = block_kernel(weight.dtype, uses_bulk_copies(weight, p.k, shape.lanes, device));
  const auto shared_bytes = [&] { return shape.ring_at(k_blocks) + kMatvecWarps * kernel.stages * shape.stage_bytes; };
  shape.passes = kUsualPasses;
  const int fit = std::clamp(device.shared_bytes / (shared_bytes() + 1024), 1, kMatvecBlocks);
  const std::int64_t resident = device.multiprocessors * fit;
  const std::int64_t passes = ceil_of(p.n, pass_rows);  // per pair
  const int block_passes = groups_per_block(passes, pairs, resident, shape.groups * kUsualPasses);
  shape.passes = std::min(ceil_of(block_passes, shape.groups), 2 * kUsualPasses);
  const dim3 grid(static_cast<unsigned>(ceil_of(passes, static_cast<std::int64_t>(shape.passes) * shape.groups)),
                  static_cast<unsigned>(p.ids.slots), static_cast<unsigned>(pairs / p.ids.slots));
  launch(kernel.kernel, grid, static_cast<std::size_t>(shared_bytes()), device, stream, operation, p, shape);
}

}  // namespace thalweg::cu
