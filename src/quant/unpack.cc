#include "quant/unpack.h"

#include <cstring>

namespace thalweg {
namespace {

template <class Block>
void unpack_format(const void* blocks, std::int64_t count, float* values) {
  unpack_blocks(static_cast<const Block*>(blocks), count / dtype_info(Block::kDType).block_size, values);
}

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
    case DType::kI32:
      return;
    case DType::kQ4_0:
      return unpack_format<BlockQ4_0>(blocks, count, values);
    case DType::kQ4_1:
      return unpack_format<BlockQ4_1>(blocks, count, values);
    case DType::kQ5_0:
      return unpack_format<BlockQ5_0>(blocks, count, values);
    case DType::kQ5_1:
      return unpack_format<BlockQ5_1>(blocks, count, values);
    case DType::kQ8_0:
      return unpack_format<BlockQ8_0>(blocks, count, values);
    case DType::kQ2_K:
      return unpack_format<BlockQ2_K>(blocks, count, values);
    case DType::kQ3_K:
      return unpack_format<BlockQ3_K>(blocks, count, values);
    case DType::kQ4_K:
      return unpack_format<BlockQ4_K>(blocks, count, values);
    case DType::kQ5_K:
      return unpack_format<BlockQ5_K>(blocks, count, values);
    case DType::kQ6_K:
      return unpack_format<BlockQ6_K>(blocks, count, values);
    case DType::kIQ4_NL:
      return unpack_format<BlockIQ4_NL>(blocks, count, values);
    case DType::kIQ4_XS:
      return unpack_format<BlockIQ4_XS>(blocks, count, values);
    case DType::kMXFP4:
      return unpack_format<BlockMXFP4>(blocks, count, values);
  }
}

}  // namespace thalweg
