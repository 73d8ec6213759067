#include "quant/unpack.h"

#include <cstring>

namespace thalweg {
namespace {

void unpack_f16(const void* from, std::int64_t count, float* values) {
  const auto* words = static_cast<const Word16*>(from);
  for (std::int64_t i = 0; i < count; ++i) values[i] = words[i].f32();
}

void unpack_bf16(const void* from, std::int64_t count, float* values) {
  const auto* words = static_cast<const Word16*>(from);
  for (std::int64_t i = 0; i < count; ++i) values[i] = bf16_to_f32(words[i].bits());
}

}  // namespace

void unpack(DType dtype, const void* blocks, std::int64_t count, float* values) {
  if (count <= 0) return;
  switch (dtype) {
    case DType::kF32:
      std::memcpy(values, blocks, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case DType::kF16:
      return unpack_f16(blocks, count, values);
    case DType::kBF16:
      return unpack_bf16(blocks, count, values);
    default:
      break;
  }
  with_block_type(dtype, [&]<class Block>() {
    unpack_blocks(static_cast<const Block*>(blocks), count / dtype_info(Block::kDType).block_size, values);
  });
}

}  // namespace thalweg
