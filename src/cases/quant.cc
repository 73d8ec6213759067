// Cases of unpacking, bit-exact against the weight-by-weight reference, and of packing, whose error is bounded by the
// format's step.

#include <algorithm>
#include <cmath>
#include <vector>

#include "cases/blocks.h"
#include "cases/case.h"
#include "reference/array.h"
#include "thalweg/quant.h"

namespace thalweg::cases {
namespace {

constexpr DType kDTypes[] = {DType::kF32,  DType::kF16,    DType::kBF16,   DType::kQ4_0, DType::kQ4_1, DType::kQ5_0,
                             DType::kQ5_1, DType::kQ8_0,   DType::kQ2_K,   DType::kQ3_K, DType::kQ4_K, DType::kQ5_K,
                             DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS, DType::kMXFP4};

struct Shape {
  std::int64_t rows;
  std::int64_t columns;
  Memory::Layout layout = Memory::Layout::kContiguous;
  std::int64_t matrices = 0;  // above 0: [matrices,rows,columns]

  std::string name(DType dtype) const {
    return std::string(dtype_name(dtype)) + "_" + (matrices > 0 ? std::to_string(matrices) + "x" : "") +
           std::to_string(rows) + "x" + std::to_string(columns) +
           (layout == Memory::Layout::kStrided ? "_strided" : "");
  }
  std::vector<std::int64_t> sizes() const {
    return matrices > 0 ? std::vector{matrices, rows, columns} : std::vector{rows, columns};
  }
};

Cost movement(DType dtype, const Shape& shape) {
  const auto weights = static_cast<double>(std::max<std::int64_t>(shape.matrices, 1) * shape.rows * shape.columns);
  const DTypeInfo info = dtype_info(dtype);
  return {weights * (4.0 + static_cast<double>(info.block_bytes) / info.block_size), 0.0};
}

// ---------------------------------------------------------------------------------------------------------------------

Case dequantize_case(DType dtype, const Shape& shape, BlockScales scales) {
  const std::string name = shape.name(dtype) + (scales == BlockScales::kEdge ? "_edge" : "");
  return make_case<DequantizeArgs>(name, [=](OperationProblem<DequantizeArgs>& problem, Random& random) {
    problem.memory.set_layout(shape.layout);
    problem.args.blocks = problem.memory.input_bytes(
        dtype, shape.sizes(), [&](void* row, std::int64_t count) { fill_blocks(dtype, scales, random, row, count); });
    problem.args.values = problem.memory.output(DType::kF32, shape.sizes());
    problem.cost = movement(dtype, shape);
    problem.find_expected = [](const DequantizeArgs& args) -> std::vector<Expected> {
      return {expect_equal("values", args.values, reference::read(args.blocks))};
    };
  });
}

// ---------------------------------------------------------------------------------------------------------------------

enum class Values { kNormal, kLaplace, kOutliers, kShifted, kLarge, kSmall, kSparseRows };

std::string_view name_of(Values values) {
  switch (values) {
    case Values::kNormal:
      return "";
    case Values::kLaplace:
      return "_laplace";
    case Values::kOutliers:
      return "_outliers";
    case Values::kShifted:
      return "_shifted";
    case Values::kLarge:
      return "_1e4";
    case Values::kSmall:
      return "_1e-2";
    case Values::kSparseRows:
      return "_zero_runs";
  }
  return "?";
}

double draw(Values values, std::int64_t i, Random& random) {
  const double x = random.normal();
  switch (values) {
    case Values::kNormal:
      return x;
    case Values::kLaplace:
      return (x < 0 ? 1.0 : -1.0) * std::log(1.0 - random.uniform());
    case Values::kOutliers:
      return random.below(100) == 0 ? 10.0 * x : x;
    case Values::kShifted:
      return x - 3.0;
    case Values::kLarge:
      return 1e4 * x;
    case Values::kSmall:
      return 1e-2 * x;
    case Values::kSparseRows:
      return i / 64 % 2 == 0 ? x : 0.0;  // whole blocks and groups of zeros
  }
  return x;
}

// A format's quantization of a group of weights.
struct Resolution {
  int group;           // weights that share a scale
  bool minimum;        // codes count up from a minimum; otherwise from zero, both ways
  double steps;        // from the minimum to the largest value, or from zero to the largest magnitude
  double group_scale;  // largest integer scale of a group; 0: the scale is an f16 of its own
};

Resolution resolution(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return {32, false, 8, 0};
    case DType::kQ4_1:
      return {32, true, 15, 0};
    case DType::kQ5_0:
      return {32, false, 16, 0};
    case DType::kQ5_1:
      return {32, true, 31, 0};
    case DType::kQ8_0:
      return {32, false, 127, 0};
    case DType::kQ2_K:
      return {16, true, 3, 15};
    case DType::kQ3_K:
      return {16, false, 4, 31};
    case DType::kQ4_K:
      return {32, true, 15, 63};
    case DType::kQ5_K:
      return {32, true, 31, 63};
    case DType::kQ6_K:
      return {16, false, 32, 127};
    case DType::kIQ4_NL:
      return {32, false, 113.0 / 24.0, 0};  // the widest gap between levels is 24
    default:
      return {32, false, 2.5, 0};  // MXFP4: the gap from 4 to 6, in a block whose peak is no less than 5
  }
}

// The rms error of rounding to the nearest code is step / sqrt(12), that of a group's integer scale and minimum one
// integer step / sqrt(12) each, times the highest code. A factor of 1.5 covers the value at the end of an asymmetric
// range, f16 scales, and the small sample. The packer minimizes squares, so that their sum must meet this bound, and no
// single error exceeds the root of the sum.
Bound packing_bound(DType dtype, const std::vector<double>& values) {
  double size = 0.0;
  double largest = 0.0;
  for (const double x : values) {
    size += x * x;
    largest = std::max(largest, std::abs(x));
  }
  if (dtype == DType::kF32 || size == 0.0) return {};
  if (dtype == DType::kF16) return {0x1p-11, 0x1p-11};
  if (dtype == DType::kBF16) return {0x1p-8, 0x1p-8};

  const Resolution format = resolution(dtype);
  const auto block = static_cast<std::size_t>(dtype_info(dtype).block_size);
  const auto group = static_cast<std::size_t>(format.group);
  double squares = 0.0;
  for (std::size_t b = 0; b < values.size(); b += block) {
    std::vector<double> steps;
    double largest_minimum = 0.0;
    for (std::size_t g = b; g < b + block; g += group) {
      const auto first = values.begin() + static_cast<std::ptrdiff_t>(g);
      const auto [low, high] = std::minmax_element(first, first + format.group);
      // Integer minimums are never positive.
      const double minimum = format.group_scale > 0 ? std::min(*low, 0.0) : *low;
      const double span = format.minimum ? *high - minimum : std::max(std::abs(*low), std::abs(*high));
      steps.push_back(span / format.steps);
      largest_minimum = std::max(largest_minimum, format.minimum ? -minimum : 0.0);
    }
    const double largest_step = *std::max_element(steps.begin(), steps.end());
    double unit_squares = 0.0;
    if (format.group_scale > 0) {
      const double from_scale = largest_step * format.steps / format.group_scale;
      const double from_minimum = largest_minimum / format.group_scale;
      unit_squares = (from_scale * from_scale + from_minimum * from_minimum) / 12.0;
    }
    for (const double step : steps) squares += format.group * (step * step / 12.0 + unit_squares);
  }
  const double error = 1.5 * std::sqrt(squares);
  return {error / std::sqrt(size), error / largest};
}

Case quantize_case(DType dtype, const Shape& shape, Values values) {
  const std::string name = shape.name(dtype) + std::string(name_of(values));
  return make_case<QuantizeArgs>(name, [=](OperationProblem<QuantizeArgs>& problem, Random& random) {
    problem.memory.set_layout(shape.layout);
    std::int64_t i = 0;
    problem.args.values =
        problem.memory.input(DType::kF32, shape.sizes(), [&, values] { return draw(values, i++, random); });
    problem.args.blocks = problem.memory.output(dtype, shape.sizes());
    problem.cost = movement(dtype, shape);
    problem.find_expected = [](const QuantizeArgs& args) -> std::vector<Expected> {
      const reference::Array exact = reference::read(args.values);
      return {{"blocks", args.blocks, exact.values, packing_bound(args.blocks.dtype, exact.values), {}}};
    };
  });
}

Case for_benchmark(Case test) {
  test.verify = false;
  test.bench = true;
  return test;
}

}  // namespace

void add_quant_cases(std::vector<Case>& cases) {
  constexpr auto kStrided = Memory::Layout::kStrided;
  for (const DType dtype : kDTypes) {
    cases.push_back(dequantize_case(dtype, {3, 512}, BlockScales::kOrdinary));
    cases.push_back(dequantize_case(dtype, {5, 768, kStrided}, BlockScales::kEdge));
  }
  for (const DType dtype : {DType::kF16, DType::kQ8_0, DType::kQ4_K}) {
    cases.push_back(dequantize_case(dtype, {0, 256}, BlockScales::kOrdinary));
    cases.push_back(dequantize_case(dtype, {3, 0}, BlockScales::kOrdinary));
    cases.push_back(dequantize_case(dtype, {2, 9472}, BlockScales::kOrdinary));  // more than a task's segment
  }
  cases.push_back(dequantize_case(DType::kQ4_0, {7, 32}, BlockScales::kEdge));
  cases.push_back(dequantize_case(DType::kQ6_K, {3, 512, kStrided, 2}, BlockScales::kOrdinary));
  for (const DType dtype : {DType::kF16, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K, DType::kIQ4_XS, DType::kMXFP4}) {
    cases.push_back(for_benchmark(dequantize_case(dtype, {1024, 4096}, BlockScales::kOrdinary)));
  }

  for (const DType dtype : kDTypes) {
    if (!can_pack(dtype)) continue;
    cases.push_back(quantize_case(dtype, {3, 512}, Values::kNormal));
    cases.push_back(quantize_case(dtype, {5, 768, kStrided}, Values::kLaplace));
    cases.push_back(quantize_case(dtype, {2, 9472}, Values::kNormal));  // more than a task's segment
    if (!is_block_format(dtype)) continue;
    for (const Values values :
         {Values::kOutliers, Values::kShifted, Values::kLarge, Values::kSmall, Values::kSparseRows}) {
      cases.push_back(quantize_case(dtype, {2, 256}, values));
    }
  }
  for (const DType dtype : {DType::kBF16, DType::kQ8_0, DType::kQ4_K}) {
    cases.push_back(quantize_case(dtype, {0, 256}, Values::kNormal));
    cases.push_back(quantize_case(dtype, {3, 0}, Values::kNormal));
  }
  cases.push_back(quantize_case(DType::kQ4_0, {7, 32}, Values::kNormal));
  cases.push_back(quantize_case(DType::kQ4_K, {3, 512, kStrided, 2}, Values::kNormal));
  for (const DType dtype : {DType::kF16, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K, DType::kMXFP4}) {
    cases.push_back(for_benchmark(quantize_case(dtype, {64, 4096}, Values::kNormal)));
  }
}

}  // namespace thalweg::cases
