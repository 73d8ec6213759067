#include "cuda/experts/weight_map_sm90.h"

#include <algorithm>
#include <numeric>

#include "cuda/common/tensor_map.h"

namespace thalweg::cu::sm90 {

int make_weight_map(const WeightView& weight, int n, std::int64_t row_bytes, int box_rows, int box_bytes,
                    CUtensorMap& map) {
  constexpr std::int64_t kMultiple = 16;
  const std::int64_t period = kMultiple / std::gcd(kMultiple, weight.row_stride);
  // Strides have to be positive even where there is only one row or expert.
  const std::int64_t row_stride = std::max(weight.row_stride * period, kMultiple);
  const std::int64_t expert_stride = std::max(weight.expert_stride, kMultiple);
  // Decided at the launch and not in the plan: a tensor map of an unaligned address would fault.
  if (reinterpret_cast<std::uintptr_t>(weight.data) % kMultiple != 0 || expert_stride % kMultiple != 0 ||
      row_bytes % 2 != 0 || weight.row_stride % 2 != 0 || period > box_rows || n % period != 0 ||
      tensor_map_encoder() == nullptr) {
    return 0;
  }
  constexpr cuuint64_t kWordBytes = 2;
  const cuuint64_t sizes[3] = {static_cast<cuuint64_t>(weight.row_stride * (period - 1) + row_bytes) / kWordBytes,
                               static_cast<cuuint64_t>(n / period), static_cast<cuuint64_t>(weight.experts)};
  const cuuint64_t strides[2] = {static_cast<cuuint64_t>(row_stride), static_cast<cuuint64_t>(expert_stride)};
  const cuuint32_t box[3] = {static_cast<cuuint32_t>(box_bytes / kWordBytes),
                             static_cast<cuuint32_t>(box_rows / period), 1};
  const cuuint32_t steps[3] = {1, 1, 1};
  return tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, const_cast<std::uint8_t*>(weight.data), sizes,
                              strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS
             ? static_cast<int>(period)
             : 0;
}

}  // namespace thalweg::cu::sm90
