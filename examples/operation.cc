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
  constexpr std::int64_t T = 3, K = 256, N = 8;  // tokens, inputs, outputs
  std::vector<float> x(T * K), weight(N * K), y(T * N);
  for (std::size_t i = 0; i < x.size(); ++i) x[i] = std::sin(static_cast<float>(i * i % 997));
  for (std::size_t i = 0; i < weight.size(); ++i) weight[i] = std::cos(static_cast<float>(i * i % 991));

  try {
    const Stream stream = Stream::cpu();
    HostWorkspace scratch;

    std::vector<std::uint8_t> packed(static_cast<std::size_t>(bytes_of(DType::kQ4_K, N * K)));
    QuantizeArgs pack;
    pack.values = ConstTensor(weight.data(), DType::kF32, {N, K});
    pack.blocks = Tensor(packed.data(), DType::kQ4_K, {N, K});
    quantize(pack, scratch.reserve(workspace_size(pack, stream)), stream);

    LinearArgs product;
    product.x = ConstTensor(x.data(), DType::kF32, {T, K});
    product.weight = pack.blocks;
    product.y = Tensor(y.data(), DType::kF32, {T, N});
    linear(product, scratch.reserve(workspace_size(product, stream)), stream);

    // What rounding the weights has done.
    double error = 0, size = 0;
    for (std::int64_t t = 0; t < T; ++t) {
      for (std::int64_t n = 0; n < N; ++n) {
        double exact = 0;
        for (std::int64_t k = 0; k < K; ++k) {
          exact += double{x[static_cast<std::size_t>(t * K + k)]} * weight[static_cast<std::size_t>(n * K + k)];
        }
        const double difference = y[static_cast<std::size_t>(t * N + n)] - exact;
        error += difference * difference;
        size += exact * exact;
      }
    }
    std::printf("%lld products with %lld weights of %.1f bits: relative error %.4f\n", static_cast<long long>(T),
                static_cast<long long>(N * K), 8.0 * static_cast<double>(packed.size()) / (N * K),
                std::sqrt(error / size));
    return error < 0.01 * size ? 0 : 1;
  } catch (const Error& refused) {
    std::fprintf(stderr, "%s\n", refused.what());
    return 1;
  }
}
