#include "cuda/common/tensor_map.h"
#include "cuda/gated_delta/chunk_boxes_sm90.h"
#include "thalweg/error.h"

namespace thalweg::cu::sm90 {
namespace {

bool make_map(const void* data, const std::int64_t (&strides)[4], const std::int64_t (&shape)[4], CUtensorMap& map) {
  constexpr int kRank = 4;
  constexpr std::int64_t kElementBytes = 2;
  constexpr std::int64_t kMultiple = 16;
  cuuint64_t sizes[kRank];  // from the innermost dimension on: columns, heads, tokens, rows
  cuuint64_t steps[kRank - 1];
  constexpr int kDimensions[kRank] = {3, 2, 1, 0};
  for (int i = 0; i < kRank; ++i) {
    const int dimension = kDimensions[i];
    sizes[i] = static_cast<cuuint64_t>(shape[dimension]);
    if (i == 0) continue;
    // The stride of a dimension of size 1 means nothing, but must be valid.
    const std::int64_t bytes = shape[dimension] > 1 ? strides[dimension] * kElementBytes : kMultiple;
    if (bytes <= 0 || bytes % kMultiple != 0) return false;
    steps[i - 1] = static_cast<cuuint64_t>(bytes);
  }
  const cuuint32_t box[kRank] = {kTileColumns, 1, kChunk, 1};
  const cuuint32_t every[kRank] = {1, 1, 1, 1};
  return tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, kRank, const_cast<void*>(data), sizes, steps, box,
                              every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace

ChunkMaps make_chunk_maps(const ChunkArguments& args) {
  ChunkMaps maps{};
  const std::int64_t rows = args.map.cu_seqlens != nullptr ? 1 : args.map.sequences;
  const std::int64_t keys[4] = {rows, args.map.tokens, args.hk, args.key_width};
  const std::int64_t values[4] = {rows, args.map.tokens, args.hv, args.value_width};
  if (!make_map(args.q.data, args.q.strides, keys, maps.q) || !make_map(args.k.data, args.k.strides, keys, maps.k) ||
      !make_map(args.v.data, args.v.strides, values, maps.v) ||
      (!args.o_is_f32 && !make_map(args.o.data, args.o.strides, values, maps.o))) {
    throw Error("chunk_gated_delta_rule", "strides", "those of a tensor map", "others");
  }
  return maps;
}

}  // namespace thalweg::cu::sm90
