#include "quant/pack.h"

#include <cstring>
#include <type_traits>

namespace thalweg {
namespace {

void pack_f16(const float* values, std::int64_t count, void* to) {
  auto* words = static_cast<Word16*>(to);
  for (std::int64_t i = 0; i < count; ++i) words[i] = Word16::of(f32_to_f16(values[i]));
}

void pack_bf16(const float* values, std::int64_t count, void* to) {
  auto* words = static_cast<Word16*>(to);
  for (std::int64_t i = 0; i < count; ++i) words[i] = Word16::of(f32_to_bf16(values[i]));
}

}  // namespace

void pack(DType dtype, const float* values, std::int64_t count, void* blocks) {
  if (count <= 0) return;
  switch (dtype) {
    case DType::kF32:
      std::memcpy(blocks, values, static_cast<std::size_t>(count) * sizeof(float));
      return;
    case DType::kF16:
      return pack_f16(values, count, blocks);
    case DType::kBF16:
      return pack_bf16(values, count, blocks);
    default:
      break;
  }
  with_block_type(dtype, [&]<class Block>() {
    if constexpr (!std::is_same_v<Block, BlockIQ4_XS>) {
      pack_blocks(values, count / dtype_info(Block::kDType).block_size, static_cast<Block*>(blocks));
    }
  });
}

}  // namespace thalweg
