#include "cases/blocks.h"

#include <array>
#include <cstring>

#include "core/float16.h"

namespace thalweg::cases {
namespace {

struct HalfField {
  int offset;      // in bytes; -1: the format has none
  double typical;  // for weights of order one
};

// Offsets of a format's f16 scale and f16 minimum.
std::array<HalfField, 2> half_fields(DType dtype) {
  constexpr HalfField kNone{-1, 0.0};
  switch (dtype) {
    case DType::kQ4_0:
      return {{{0, 0.2}, kNone}};
    case DType::kQ4_1:
      return {{{0, 0.2}, {2, -1.5}}};
    case DType::kQ5_0:
      return {{{0, 0.1}, kNone}};
    case DType::kQ5_1:
      return {{{0, 0.1}, {2, -1.5}}};
    case DType::kQ8_0:
      return {{{0, 0.01}, kNone}};
    case DType::kQ2_K:
      return {{{80, 0.1}, {82, 0.1}}};
    case DType::kQ3_K:
      return {{{108, 0.03}, kNone}};
    case DType::kQ4_K:
      return {{{0, 0.004}, {2, 0.03}}};
    case DType::kQ5_K:
      return {{{0, 0.002}, {2, 0.03}}};
    case DType::kQ6_K:
      return {{{208, 0.0006}, kNone}};
    case DType::kIQ4_NL:
      return {{{0, 0.02}, kNone}};
    case DType::kIQ4_XS:
      return {{{0, 0.0008}, kNone}};
    default:
      return {{kNone, kNone}};
  }
}

void store_half(double value, unsigned char* at) {
  const std::uint16_t bits = f32_to_f16(static_cast<float>(value));
  std::memcpy(at, &bits, sizeof(bits));
}

double edge_scale(double typical, Random& random) {
  switch (random.below(6)) {
    case 0:
      return 0.0;
    case 1:
      return 0x1p-24 * static_cast<double>(1 + random.below(1023));  // subnormal
    case 2:
      return -typical;
    case 3:
      return -0x1p-14;  // the smallest normal
    case 4:
      return 1000.0 * typical;
    default:
      return typical;
  }
}

void fill_block(DType dtype, BlockScales scales, Random& random, unsigned char* block) {
  const auto bytes = static_cast<std::size_t>(dtype_info(dtype).block_bytes);
  const bool extreme = scales == BlockScales::kEdge && random.below(4) == 0;
  const unsigned char filler = random.below(2) == 0 ? 0x00 : 0xFF;
  for (std::size_t i = 0; i < bytes; ++i) {
    block[i] = extreme ? filler : static_cast<unsigned char>(random.below(256));
  }
  for (const HalfField& field : half_fields(dtype)) {
    if (field.offset < 0) continue;
    const double ordinary = field.typical * random.uniform(0.5, 1.5);
    store_half(scales == BlockScales::kEdge ? edge_scale(field.typical, random) : ordinary, block + field.offset);
  }
  if (dtype == DType::kMXFP4) {
    // Not the largest exponents: 2^127 times 12 is not finite.
    constexpr std::array<unsigned char, 5> kEdges = {0, 1, 2, 127, 250};
    block[0] = static_cast<unsigned char>(
        scales == BlockScales::kEdge ? kEdges[static_cast<std::size_t>(random.below(5))] : 125 + random.below(4));
  }
}

void fill_plain(DType dtype, BlockScales scales, Random& random, unsigned char* element) {
  const double magnitude = scales == BlockScales::kEdge ? edge_scale(1.0, random) : 1.0;
  const auto value = static_cast<float>(magnitude * random.normal());
  const std::uint16_t word = dtype == DType::kF16 ? f32_to_f16(value) : f32_to_bf16(value);
  if (dtype == DType::kF32) {
    std::memcpy(element, &value, sizeof(value));
  } else {
    std::memcpy(element, &word, sizeof(word));
  }
}

}  // namespace

void fill_blocks(DType dtype, BlockScales scales, Random& random, void* row, std::int64_t count) {
  const DTypeInfo info = dtype_info(dtype);
  auto* block = static_cast<unsigned char*>(row);
  for (std::int64_t b = 0; b < count / info.block_size; ++b, block += info.block_bytes) {
    if (is_block_format(dtype)) {
      fill_block(dtype, scales, random, block);
    } else {
      fill_plain(dtype, scales, random, block);
    }
  }
}

}  // namespace thalweg::cases
