#include "cases/blocks.h"

#include <cstring>

#include "quant/blocks.h"

namespace thalweg::cases {
namespace {

constexpr double kWeight = 0.05;

Word16 f16_word(double value) { return Word16::of(f32_to_f16(static_cast<float>(value))); }

// `size` is what a scale of 1 would give a typical weight.
template <class Block>
void set_scale(Block& block, double size, Random& random) {
  const double sign = random.uniform() < 0.5 ? -1.0 : 1.0;
  block.scale = f16_word(sign * random.uniform(0.5, 1.5) * kWeight / size);
}
// Codes times scale less a minimum that centres them, more or less.
template <class Block>
void set_scale_and_minimum(Block& block, double size, double minimum, Random& random) {
  block.scale = f16_word(random.uniform(0.5, 1.5) * kWeight / size);
  block.minimum = f16_word(random.uniform(0.5, 1.5) * minimum * kWeight / size);
}

void set_scales(BlockQ4_0& block, Random& random) { set_scale(block, 4.6, random); }
void set_scales(BlockQ4_1& block, Random& random) { set_scale_and_minimum(block, 4.6, -7.5, random); }
void set_scales(BlockQ5_0& block, Random& random) { set_scale(block, 9.2, random); }
void set_scales(BlockQ5_1& block, Random& random) { set_scale_and_minimum(block, 9.2, -15.5, random); }
void set_scales(BlockQ8_0& block, Random& random) { set_scale(block, 74.0, random); }
void set_scales(BlockQ2_K& block, Random& random) { set_scale_and_minimum(block, 8.0 * 1.1, 1.5, random); }
void set_scales(BlockQ3_K& block, Random& random) { set_scale(block, 18.0 * 2.3, random); }
void set_scales(BlockQ4_K& block, Random& random) { set_scale_and_minimum(block, 32.0 * 4.6, 7.5, random); }
void set_scales(BlockQ5_K& block, Random& random) { set_scale_and_minimum(block, 32.0 * 9.2, 15.5, random); }
void set_scales(BlockQ6_K& block, Random& random) { set_scale(block, 74.0 * 18.0, random); }
void set_scales(BlockIQ4_NL& block, Random& random) { set_scale(block, 68.0, random); }
void set_scales(BlockIQ4_XS& block, Random& random) { set_scale(block, 18.0 * 68.0, random); }
void set_scales(BlockMXFP4& block, Random& random) {
  block.exponent = static_cast<std::uint8_t>(121 + random.below(3));  // 2^-7 .. 2^-5, levels of about 5
}

template <class Block>
void fill_format(void* blocks, std::int64_t count, Random& random) {
  for (std::int64_t b = 0; b < count / dtype_info(Block::kDType).block_size; ++b) {
    set_scales(static_cast<Block*>(blocks)[b], random);
  }
}

void fill_random(void* bytes, std::int64_t count, Random& random) {
  for (std::int64_t i = 0; i < count; i += 8) {
    const std::uint64_t bits = random.bits();
    std::memcpy(static_cast<char*>(bytes) + i, &bits, static_cast<std::size_t>(std::min<std::int64_t>(8, count - i)));
  }
}

}  // namespace

void fill_blocks(DType dtype, void* blocks, std::int64_t count, Random& random) {
  fill_random(blocks, bytes_of(dtype, count), random);
  switch (dtype) {
    case DType::kQ4_0:
      return fill_format<BlockQ4_0>(blocks, count, random);
    case DType::kQ4_1:
      return fill_format<BlockQ4_1>(blocks, count, random);
    case DType::kQ5_0:
      return fill_format<BlockQ5_0>(blocks, count, random);
    case DType::kQ5_1:
      return fill_format<BlockQ5_1>(blocks, count, random);
    case DType::kQ8_0:
      return fill_format<BlockQ8_0>(blocks, count, random);
    case DType::kQ2_K:
      return fill_format<BlockQ2_K>(blocks, count, random);
    case DType::kQ3_K:
      return fill_format<BlockQ3_K>(blocks, count, random);
    case DType::kQ4_K:
      return fill_format<BlockQ4_K>(blocks, count, random);
    case DType::kQ5_K:
      return fill_format<BlockQ5_K>(blocks, count, random);
    case DType::kQ6_K:
      return fill_format<BlockQ6_K>(blocks, count, random);
    case DType::kIQ4_NL:
      return fill_format<BlockIQ4_NL>(blocks, count, random);
    case DType::kIQ4_XS:
      return fill_format<BlockIQ4_XS>(blocks, count, random);
    case DType::kMXFP4:
      return fill_format<BlockMXFP4>(blocks, count, random);
    default:
      for (std::int64_t i = 0; i < count; ++i) write_element(dtype, blocks, i, kWeight * random.normal());
  }
}

Tensor make_weights(Memory& memory, DType dtype, std::vector<std::int64_t> shape, Random& random) {
  return memory.input_bytes(dtype, std::move(shape),
                            [&](void* row, std::int64_t count) { fill_blocks(dtype, row, count, random); });
}

Tensor make_large_weights(Memory& memory, DType dtype, std::vector<std::int64_t> shape, Random& random) {
  const std::int64_t block = dtype_info(dtype).block_size;
  const std::int64_t row = shape.back();
  const std::int64_t pool_weights = std::int64_t{1} << 22;
  std::vector<unsigned char> pool(static_cast<std::size_t>(bytes_of(dtype, pool_weights)));
  fill_blocks(dtype, pool.data(), pool_weights, random);
  return memory.input_bytes(dtype, std::move(shape), [&](void* to, std::int64_t count) {
    const std::int64_t start = random.below((pool_weights - row) / block) * block;
    std::memcpy(to, pool.data() + bytes_of(dtype, start), static_cast<std::size_t>(bytes_of(dtype, count)));
  });
}

std::vector<DType> weight_types() {
  std::vector<DType> types;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype != DType::kI32) types.push_back(dtype);
  }
  return types;
}

std::vector<DType> block_types() {
  std::vector<DType> types = weight_types();
  std::erase_if(types, [](DType dtype) { return !is_block_format(dtype); });
  return types;
}

}  // namespace thalweg::cases
