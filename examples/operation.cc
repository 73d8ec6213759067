// One operation on buffers of one's own: a product with weights packed to 4.5 bits, y = x W^T.

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "thalweg/error.h"
#include "thalweg/nn.h"
#include "thalweg/quant.h"

int main() {
  using namespace thalweg;
  constexpr std::int64_t kTokens = 3, kInputs = 256, kOutputs = 8;
  std::vector<float> x(kTokens * kInputs), weight(kOutputs * kInputs), y(kTokens * kOutputs);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i * i % 997));
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = std::cos(static_cast<float>(i * i % 991));

  try {
    const Stream stream = Stream::cpu();
    HostWorkspace scratch;

    std::vector<std::uint8_t> packed(static_cast<std::size_t>(bytes_of(DType::kQ4_K, kOutputs * kInputs)));
    QuantizeArgs pack;
    pack.values = ConstTensor(weight.data(), DType::kF32, {kOutputs, kInputs}, kCpu);
    pack.blocks = Tensor(packed.data(), DType::kQ4_K, {kOutputs, kInputs}, kCpu);
    quantize(pack, scratch.reserve(workspace_size(pack, stream)), stream);

    LinearArgs product;
    product.x = ConstTensor(x.data(), DType::kF32, {kTokens, kInputs}, kCpu);
    product.weight = pack.blocks;
    product.y = Tensor(y.data(), DType::kF32, {kTokens, kOutputs}, kCpu);
    linear(product, scratch.reserve(workspace_size(product, stream)), stream);

    // What rounding the weights has done.
    double error = 0, size = 0;
    for (std::int64_t t = 0; t < kTokens; ++t) {
      for (std::int64_t n = 0; n < kOutputs; ++n) {
        double exact = 0;
        for (std::int64_t k = 0; k < kInputs; ++k) {
          exact +=
              double{x[static_cast<std::size_t>(t * kInputs + k)]} * weight[static_cast<std::size_t>(n * kInputs + k)];
        }
        const double difference = y[static_cast<std::size_t>(t * kOutputs + n)] - exact;
        error += difference * difference;
        size += exact * exact;
      }
    }
    std::printf("%lld products with %lld weights of %.1f bits: relative error %.4f\n", static_cast<long long>(kTokens),
                static_cast<long long>(weight.size()), 8.0 * static_cast<double>(packed.size()) / (kOutputs * kInputs),
                std::sqrt(error / size));
    return error < 0.01 * size ? 0 : 1;
  } catch (const Error& refused) {
    std::fprintf(stderr, "%s\n", refused.what());
    return 1;
  }
}
