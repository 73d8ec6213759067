#include "cuda/experts/grouped.h"

#include <algorithm>

#include "cuda/experts/formats/dispatch.h"
#include "cuda/experts/grouped_kernel.h"
#include "thalweg/moe.h"

namespace thalweg::cu {
namespace {

using Kernel = void (*)(GroupedProduct);

// Calls body.operator()<kType>() for a format that the kernel takes; returns Result{} for others.
template <class Body>
auto dispatch_grouped(DType type, Body&& body) {
  using Result = decltype(body.template operator()<DType::kQ8_0>());
  return dispatch_format(type, [&]<DType kType>() -> Result {
    if constexpr (kType == DType::kQ4_K || kType == DType::kQ5_K || kType == DType::kQ6_K || kType == DType::kQ8_0) {
      return body.template operator()<kType>();
    } else {
      return Result{};
    }
  });
}

template <bool kDown>
Kernel kernel_of(DType type) {
  return dispatch_grouped(type, [&]<DType kType>() -> Kernel { return grouped_product_kernel<kType, kDown>; });
}

int ring_bytes(const GroupedSide& side) {
  return side.n == 0 ? 0 : side.units * side.k_warps * side.stages * side.stage_bytes;
}

}  // namespace

std::string_view grouped_refusal(DType type) {
  const bool taken = dispatch_grouped(type, [&]<DType>() { return true; });
  return taken ? std::string_view() : "takes weights of Q4_K, Q5_K, Q6_K or Q8_0";
}

int grouped_stage_bytes(DType type) {
  return dispatch_grouped(type, [&]<DType kType>() -> int { return ByteRows<kType>::kBytes; });
}

void launch_grouped_product(GroupedProduct p, bool down, std::int64_t most_items, const DeviceProperties& device,
                            cudaStream_t stream, std::string_view operation) {
  const auto launch = [&](const GroupedSide& side, int first, std::int64_t items, int ring, int blocks) {
    p.first_item = first;
    p.item_blocks = blocks;
    const Kernel kernel = down ? kernel_of<true>(side.first.type) : kernel_of<false>(side.first.type);
    const auto bytes = static_cast<std::size_t>(
        p.items.item_tokens * grouped_x_pitch(std::max(p.experts.k_tiles, p.shared.k_tiles)) + ring);
    allow_shared_memory(reinterpret_cast<const void*>(kernel), bytes, operation);
    pdl_launch(kernel, dim3(static_cast<unsigned>(items * blocks)), kGroupedThreads, bytes, device, stream, operation,
               p);
  };
  p.waits = true;
  const int rings[] = {ring_bytes(p.experts), ring_bytes(p.shared)};
  if (p.shared_items == 0 || p.shared.first.type == p.experts.first.type) {
    const int blocks = p.shared_items == 0 ? p.experts.blocks() : std::max(p.experts.blocks(), p.shared.blocks());
    return launch(p.experts, 0, most_items, std::max(rings[0], rings[1]), blocks);
  }
  launch(p.shared, 0, p.shared_items, rings[1], p.shared.blocks());
  p.waits = !device.programmatic_launch;
  launch(p.experts, p.shared_items, most_items - p.shared_items, rings[0], p.experts.blocks());
}

}  // namespace thalweg::cu
