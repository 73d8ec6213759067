#include "cuda/common/tensor_map.h"
#include "cuda/gated_delta/chunk_boxes_sm90.h"
#include "thalweg/error.h"

namespace thalweg::cu::sm90 {
namespace {

// A box has `tiles` tiles of kChunk tokens by kTileColumns columns, one after the other.
bool make_map(const void* data, const std::int64_t (&strides)[4], const std::int64_t (&shape)[4], int tiles,
              CUtensorMap& map) {
  constexpr int kRank = 5;
  constexpr std::int64_t kElementBytes = 2;
  constexpr std::int64_t kMultiple = 16;
  // From the innermost dimension on: columns of a tile, tokens, tiles, heads, rows.
  const std::int64_t counts[kRank] = {kTileColumns, shape[1], shape[3] / kTileColumns, shape[2], shape[0]};
  const std::int64_t distances[kRank] = {1, strides[1], kTileColumns, strides[2], strides[0]};
  cuuint64_t sizes[kRank];
  cuuint64_t steps[kRank - 1];
  for (int i = 0; i < kRank; ++i) {
    sizes[i] = static_cast<cuuint64_t>(counts[i]);
    if (i == 0) continue;
    // The stride of a dimension of size 1 means nothing, but must be valid.
    const std::int64_t bytes = counts[i] > 1 ? distances[i] * kElementBytes : kMultiple;
    if (bytes <= 0 || bytes % kMultiple != 0) return false;
    steps[i - 1] = static_cast<cuuint64_t>(bytes);
  }
  const cuuint32_t box[kRank] = {kTileColumns, kChunk, static_cast<cuuint32_t>(tiles), 1, 1};
  const cuuint32_t every[kRank] = {1, 1, 1, 1, 1};
  return tensor_map_encoder()(&map, CU_TENSOR_MAP_DATA_TYPE_UINT16, kRank, const_cast<void*>(data), sizes, steps, box,
                              every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                              CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

}  // namespace

ChunkMaps make_chunk_maps(const ChunkArguments& args, int consumers) {
  ChunkMaps maps{};
  const std::int64_t rows = args.map.cu_seqlens != nullptr ? 1 : args.map.sequences;
  const std::int64_t keys[4] = {rows, args.map.tokens, args.hk, args.key_width};
  const std::int64_t values[4] = {rows, args.map.tokens, args.hv, args.value_width};
  const int key_tiles = args.key_width / kTileColumns;
  if (!make_map(args.q.data, args.q.strides, keys, key_tiles, maps.q) ||
      !make_map(args.k.data, args.k.strides, keys, key_tiles, maps.k) ||
      !make_map(args.v.data, args.v.strides, values, consumers, maps.v) ||
      (!args.o_is_f32 && !make_map(args.o.data, args.o.strides, values, consumers, maps.o))) {
    throw Error("chunk_gated_delta_rule", "strides", "those of a tensor map", "others");
  }
  return maps;
}

}  // namespace thalweg::cu::sm90
