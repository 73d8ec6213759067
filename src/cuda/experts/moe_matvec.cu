#include "cuda/experts/moe_matvec.h"

#include <algorithm>

#include "cuda/experts/formats/dispatch.h"
#include "thalweg/moe.h"

namespace thalweg::cu {
namespace {

MoeMatvecKernels kernels_for(DType type) {
  return dispatch_format(type, [&]<DType kType>() { return moe_matvec_kernels<kType>(); });
}

bool shares_launch(DType shared, DType experts) {
  return shared == experts || shared == kSharedType || shared == kOtherSharedType;
}

template <class Kernel, class Shape>
void launch(Kernel kernel, dim3 grid, int threads, int shared_bytes, const MoeMatvec& p, const Shape& shape,
            const DeviceProperties& device, cudaStream_t stream) {
  if (shared_bytes > 40 * 1024) {
    allow_shared_memory(reinterpret_cast<const void*>(kernel), static_cast<std::size_t>(shared_bytes),
                        MoeFfnArgs::kName);
  }
  pdl_launch(kernel, grid, static_cast<unsigned>(threads), static_cast<std::size_t>(shared_bytes), device, stream,
             MoeFfnArgs::kName, p, shape);
}

// Launches the kernel for `type`: for the experts, the shared expert or both.
void launch_gate_up(const MoeMatvec& p, DType type, bool experts, bool shared, const DeviceProperties& device,
                    cudaStream_t stream) {
  const MoeMatvecSizes& sizes = p.sizes;
  GateUpShape shape{};
  const auto blocks_of = [&](int outputs) {
    return sizes.tokens * ((experts ? sizes.slots * sizes.inner : 0) + (shared ? sizes.shared_inner : 0)) / outputs;
  };
  // One block of down's activations, or two where that keeps the device busy.
  const bool twice = sizes.inner % 64 == 0 && sizes.shared_inner % 64 == 0;
  shape.outputs = twice && blocks_of(64) >= 3 * device.multiprocessors ? 64 : 32;
  const int lanes = row_lanes(sizes.hidden / 32);
  const int rows = shape.outputs / kGateUpWarps;
  if (experts) {
    shape.chunk = chunk_rows(p.gate.row_bytes, lanes, rows);
    shape.stage_bytes = stage_bytes(p.gate.row_bytes, shape.chunk);
  }
  if (shared) {
    shape.shared_chunk = chunk_rows(p.shared_gate.row_bytes, lanes, rows);
    shape.stage_bytes = std::max(shape.stage_bytes, stage_bytes(p.shared_gate.row_bytes, shape.shared_chunk));
    shape.shared_blocks = sizes.tokens * sizes.shared_inner / shape.outputs;
    shape.shared_type = p.shared_gate.type;
  }
  launch(kernels_for(type).gate_up, static_cast<unsigned>(blocks_of(shape.outputs)), kGateUpThreads,
         2 * 4 * shape.outputs + kGateUpWarps * kRingStages * shape.stage_bytes, p, shape, device, stream);
}

void launch_down(const MoeMatvec& p, DType type, bool experts, bool shared, const DeviceProperties& device,
                 cudaStream_t stream) {
  const MoeMatvecSizes& sizes = p.sizes;
  DownShape shape{};
  // 64 outputs per block; fewer if that would idle more than a tenth of the device, with two blocks per multiprocessor.
  shape.outputs = kMostDownOutputs;
  while (shape.outputs > 16 && 10 * sizes.tokens * sizes.hidden < 9 * 2 * device.multiprocessors * shape.outputs) {
    shape.outputs /= 2;
  }
  if (experts) {
    shape.chunk = chunk_rows(p.down.row_bytes, row_lanes(sizes.inner / 32), shape.outputs);
    shape.stage_bytes = stage_bytes(p.down.row_bytes, shape.chunk);
  }
  if (shared) {
    shape.shared_chunk = chunk_rows(p.shared_down.row_bytes, row_lanes(sizes.shared_inner / 32), shape.outputs);
    shape.stage_bytes = std::max(shape.stage_bytes, stage_bytes(p.shared_down.row_bytes, shape.shared_chunk));
    shape.shared_type = p.shared_down.type;
  }
  shape.first_slot = experts ? 0 : sizes.slots;
  shape.last_slot = sizes.slots + (shared ? 1 : 0);
  shape.only_shared = !experts;
  shape.add_shared = !shared && sizes.shared_inner > 0;
  const int slots = shape.last_slot - shape.first_slot;
  // At least one thread per output.
  const int warps = std::clamp(slots, 2, kMostDownWarps);
  const dim3 grid(static_cast<unsigned>((sizes.hidden + shape.outputs - 1) / shape.outputs),
                  static_cast<unsigned>(sizes.tokens));
  launch(kernels_for(type).down, grid, warps * kWarpSize,
         slots * 4 * shape.outputs + warps * kRingStages * shape.stage_bytes, p, shape, device, stream);
}

}  // namespace

void launch_moe_gate_up(const MoeMatvec& p, const DeviceProperties& device, cudaStream_t stream) {
  const bool shared = p.sizes.shared_inner > 0;
  const bool together = shared && shares_launch(p.shared_gate.type, p.gate.type);
  if (shared && !together) launch_gate_up(p, p.shared_gate.type, false, true, device, stream);
  launch_gate_up(p, p.gate.type, true, together, device, stream);
}

void launch_moe_down(const MoeMatvec& p, const DeviceProperties& device, cudaStream_t stream) {
  const bool shared = p.sizes.shared_inner > 0;
  const bool together = shared && shares_launch(p.shared_down.type, p.down.type);
  if (shared && !together) launch_down(p, p.shared_down.type, false, true, device, stream);
  launch_down(p, p.down.type, true, together, device, stream);
}

}  // namespace thalweg::cu
