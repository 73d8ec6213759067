#include "quant/pack.h"

#include <cstring>

namespace thalweg {
namespace {

template <class Block>
void pack_format(const float* values, std::int64_t count, void* blocks) {
  pack_blocks(values, count / dtype_info(Block::kDType).block_size, static_cast<Block*>(blocks));
}

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
    case DType::kI32:
    case DType::kIQ4_XS:
      return;
    case DType::kQ4_0:
      return pack_format<BlockQ4_0>(values, count, blocks);
    case DType::kQ4_1:
      return pack_format<BlockQ4_1>(values, count, blocks);
    case DType::kQ5_0:
      return pack_format<BlockQ5_0>(values, count, blocks);
    case DType::kQ5_1:
      return pack_format<BlockQ5_1>(values, count, blocks);
    case DType::kQ8_0:
      return pack_format<BlockQ8_0>(values, count, blocks);
    case DType::kQ2_K:
      return pack_format<BlockQ2_K>(values, count, blocks);
    case DType::kQ3_K:
      return pack_format<BlockQ3_K>(values, count, blocks);
    case DType::kQ4_K:
      return pack_format<BlockQ4_K>(values, count, blocks);
    case DType::kQ5_K:
      return pack_format<BlockQ5_K>(values, count, blocks);
    case DType::kQ6_K:
      return pack_format<BlockQ6_K>(values, count, blocks);
    case DType::kIQ4_NL:
      return pack_format<BlockIQ4_NL>(values, count, blocks);
    case DType::kMXFP4:
      return pack_format<BlockMXFP4>(values, count, blocks);
  }
}

}  // namespace thalweg
