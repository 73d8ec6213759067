// projections by those of linear's kernels that prepare the rows once for several products: the bits of linear.

#include <cstring>
#include <vector>

#include "cases/experts.h"
#include "cuda/device.h"
#include "thalweg/nn.h"

namespace thalweg {
namespace {

using cases::Memory;
using cases::Random;

class Projections : public OnDevice {
 protected:
  void TearDown() override { select_kernel(LinearArgs::kName, ""); }
};

std::vector<char> bytes_of(const Tensor& y) {
  const auto* const data = static_cast<const char*>(y.data);
  return {data, data + bytes_of(y.dtype, y.size())};
}

// Four products of `rows` rows, of matrices whose rows are `step` apart in number.
void expect_bits_of_linear(std::int64_t rows, const DType (&formats)[4], std::int64_t first_n, std::int64_t step) {
  Memory memory;
  Random random(static_cast<std::uint64_t>(rows));
  ProjectionsArgs args;
  args.precision = MatmulPrecision::kFast;
  args.x = memory.input(DType::kBF16, {rows, 1024}, [&] { return random.normal(); });
  ConstTensor* const weights[] = {&args.weight_0, &args.weight_1, &args.weight_2, &args.weight_3};
  Tensor* const results[] = {&args.y_0, &args.y_1, &args.y_2, &args.y_3};
  std::vector<Tensor> alone;
  for (int i = 0; i < 4; ++i) {
    const std::int64_t n = first_n + step * i;
    *weights[i] = cases::make_weights(memory, formats[i], {n, 1024}, random);
    *results[i] = memory.output(DType::kBF16, {rows, n});
    alone.push_back(memory.output(DType::kBF16, {rows, n}));
  }
  run_on_device(args, memory);
  std::vector<std::vector<char>> together;
  for (const Tensor* y : results) together.push_back(bytes_of(*y));
  for (int i = 0; i < 4; ++i) {
    LinearArgs product;
    product.x = args.x;
    product.weight = *weights[i];
    product.y = alone[static_cast<std::size_t>(i)];
    product.precision = args.precision;
    run_on_device(product, memory);
    EXPECT_EQ(bytes_of(product.y), together[static_cast<std::size_t>(i)]) << rows << " rows, product " << i;
  }
}

TEST_F(Projections, StageRowsOnceForFormatsAlike) {
  const Device device = cuda_stream().device;
  LinearArgs some;
  some.x = ConstTensor(nullptr, DType::kBF16, {64, 512}, device);
  some.weight = ConstTensor(nullptr, DType::kQ4_K, {128, 512}, device);
  some.y = Tensor(nullptr, DType::kBF16, {64, 128}, device);
  some.precision = MatmulPrecision::kFast;
  select_kernel(LinearArgs::kName, "wgmma");
  if (explain(some, cuda_stream()).chosen < 0) GTEST_SKIP() << "this device has no wgmma";
  for (const std::int64_t rows : {5, 40, 150}) {
    expect_bits_of_linear(rows, {DType::kQ4_K, DType::kQ6_K, DType::kBF16, DType::kQ5_K}, 130, 60);
  }
}

TEST_F(Projections, ConvertARowOnceForAllFormats) {
  select_kernel(LinearArgs::kName, "bytes");
  expect_bits_of_linear(1, {DType::kQ4_K, DType::kQ6_K, DType::kQ8_0, DType::kQ5_K}, 64, 2112);
}

}  // namespace
}  // namespace thalweg
