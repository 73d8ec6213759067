#include "cases/experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "cases/blocks.h"
#include "reference/moe.h"

namespace thalweg::cases {

using reference::Precision;

std::string ExpertShape::name() const {
  std::string text = "M" + std::to_string(tokens) + "_S" + std::to_string(slots) + "_E" + std::to_string(experts) +
                     "_N" + std::to_string(n) + "_K" + std::to_string(k) + "_" + std::string(dtype_name(weight));
  if (x != DType::kF32) text += "_x" + std::string(dtype_name(x));
  if (y != DType::kF32) text += "_y" + std::string(dtype_name(y));
  if (ids == Ids::kCrowded) text += "_crowded";
  if (ids == Ids::kOneExpert) text += "_oneexpert";
  if (ids == Ids::kElsewhere) text += "_elsewhere";
  if (per_slot) text += "_perslot";
  if (strided) text += "_strided";
  if (fused) text += "_fused";
  if (size != 1.0) text += "_1e" + std::to_string(static_cast<int>(std::lround(std::log10(size))));
  if (precision == MatmulPrecision::kFast) text += "_fast";
  return text;
}

Bound bf16_product_bound() {
  const double l2 = std::sqrt(1e-5);
  return {l2, 4.0 * l2};
}

Bound bf16_product_bound(const reference::Array& exact, const reference::Array& plain_16bit) {
  const double l2 = std::max(bf16_product_bound().l2, 1.5 * distance(exact, plain_16bit).l2);
  return {l2, 4.0 * l2};
}

Bound q8_product_bound() {
  const double l2 = std::sqrt(2e-4);
  return {l2, 4.0 * l2};
}

Tensor make_weights(Memory& memory, DType dtype, const std::vector<std::int64_t>& shape, Random& random) {
  return memory.input_bytes(dtype, shape, [&](void* row, std::int64_t count) {
    fill_blocks(dtype, BlockScales::kOrdinary, random, row, count);
  });
}

Tensor make_large_weights(Memory& memory, DType dtype, const std::vector<std::int64_t>& shape, Random& random) {
  const std::int64_t block = dtype_info(dtype).block_size;
  const std::int64_t row = shape.back();
  const std::int64_t pool_weights = std::int64_t{1} << 22;
  std::vector<unsigned char> pool(static_cast<std::size_t>(bytes_of(dtype, pool_weights)));
  fill_blocks(dtype, BlockScales::kOrdinary, random, pool.data(), pool_weights);
  return memory.input_bytes(dtype, shape, [&](void* to, std::int64_t count) {
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

Tensor make_ids(Memory& memory, const ExpertShape& shape, Random& random) {
  const std::int64_t pool = shape.ids == Ids::kCrowded ? std::max(shape.experts / 3, shape.slots) : shape.experts;
  std::vector<std::int64_t> order(static_cast<std::size_t>(pool));
  std::int64_t pair = 0;
  return memory.input(DType::kI32, {shape.tokens, shape.slots}, [&]() -> double {
    if (shape.ids == Ids::kOneExpert) return static_cast<double>(shape.experts - 1);
    const std::int64_t slot = pair++ % shape.slots;
    if (slot == 0) {
      for (std::size_t i = 0; i < order.size(); ++i) order[i] = static_cast<std::int64_t>(i);
    }
    std::swap(order[static_cast<std::size_t>(slot)], order[static_cast<std::size_t>(slot + random.below(pool - slot))]);
    const std::int64_t expert = order[static_cast<std::size_t>(slot)];
    return shape.ids == Ids::kElsewhere && expert % 2 == 1 ? -1.0 : static_cast<double>(expert);
  });
}

Tensor second_half(const Tensor& tensor) {
  const std::int64_t half = tensor.dim(1) / 2;
  return narrow(tensor, 1, half, half);
}

ExpertMatmulArgs make_expert_args(const ExpertShape& shape, Memory& memory, Random& random) {
  memory.set_layout(shape.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
  const std::vector<std::int64_t> weight_shape = {shape.experts, shape.fused ? 2 * shape.n : shape.n, shape.k};
  ExpertMatmulArgs args;
  const Tensor weight = shape.large ? make_large_weights(memory, shape.weight, weight_shape, random)
                                    : make_weights(memory, shape.weight, weight_shape, random);
  args.weight = shape.fused ? second_half(weight) : weight;
  const std::vector<std::int64_t> x_shape =
      shape.per_slot ? std::vector{shape.tokens, shape.slots, shape.k} : std::vector{shape.tokens, shape.k};
  args.x = memory.input(shape.x, x_shape, [&] { return shape.size * random.normal(); });
  args.expert_ids = make_ids(memory, shape, random);
  args.y = memory.output(shape.y, {shape.tokens, shape.slots, shape.n});
  args.precision = shape.precision;
  return args;
}

namespace {

// The products of experts that are here, and the bytes of the others' outputs as they were before the run.
std::vector<Expected> expect_split_products(const ExpertMatmulArgs& args, Bound bound) {
  const reference::Array ids = reference::read(args.expert_ids);
  Expected here{"y", args.y, {}, bound, {}, bf16_product_bound(), q8_product_bound()};
  ConstTensor bits = args.y;  // f32
  bits.dtype = DType::kI32;
  Expected absent{"y of absent experts", bits, {}, {}};
  const reference::Array exact = reference::mul_mat_id(args, Precision::kExact);
  const std::int64_t n = args.weight.dim(1);
  for (std::int64_t i = 0; i < exact.size(); ++i) {
    const bool is_here = ids.values[static_cast<std::size_t>(i / n)] >= 0.0;
    (is_here ? here : absent).indices.push_back(i);
    (is_here ? here : absent).exact.push_back(is_here ? exact.values[static_cast<std::size_t>(i)] : -1.0);
  }
  return {here, absent};
}

}  // namespace

std::vector<Expected> expect_products(const ExpertMatmulArgs& args, bool sample) {
  const Bound bound = f32_bound(static_cast<double>(args.weight.dim(2)));
  const std::vector<double> ids = reference::read(args.expert_ids).values;
  if (std::find(ids.begin(), ids.end(), -1.0) != ids.end()) return expect_split_products(args, bound);
  if (!sample) {
    const reference::Array exact = reference::mul_mat_id(args, Precision::kExact);
    Bound fast;
    if (args.precision == MatmulPrecision::kFast) {
      fast = bf16_product_bound(exact, reference::mul_mat_id(args, Precision::k16Bit));
    }
    return {
        expect("y", args.y, exact, reference::mul_mat_id(args, Precision::kRounded), bound, fast, q8_product_bound())};
  }
  // A prime step walks through all rows and columns.
  std::vector<std::int64_t> indices;
  const std::int64_t step = args.y.size() / 500 | 1;
  for (std::int64_t i = 0; i < args.y.size(); i += step) indices.push_back(i);
  return {
      {"y", args.y, reference::mul_mat_id_at(args, indices), bound, indices, bf16_product_bound(), q8_product_bound()}};
}

Cost expert_cost(const ExpertMatmulArgs& args) {
  const auto bytes = [](const ConstTensor& tensor) {
    return tensor.size() == 0 ? 0.0 : static_cast<double>(bytes_of(tensor.dtype, tensor.size()));
  };
  std::set<double> hit;
  for (const double id : reference::read(args.expert_ids).values) hit.insert(id);
  hit.erase(-1.0);
  const double share = static_cast<double>(hit.size()) / static_cast<double>(args.weight.dim(0));
  return {share * bytes(args.weight) + bytes(args.x) + bytes(args.y) + bytes(args.expert_ids),
          2.0 * static_cast<double>(args.y.size()) * static_cast<double>(args.weight.dim(2))};
}

}  // namespace thalweg::cases
