// Chooses among the formats' kernels, which are compiled in files of their own.

#include "cuda/experts/tiled.h"

namespace thalweg::cu::sm90 {

template <DType kType>
void launch_tiled_matmul_of(const TiledMatmul& args, bool gated, const DeviceProperties& device, cudaStream_t stream,
                            std::string_view operation);

namespace {

template <class Body>
void with_format(DType dtype, Body body) {
  switch (dtype) {
    case DType::kQ4_0:
      return body.template operator()<DType::kQ4_0>();
    case DType::kQ4_1:
      return body.template operator()<DType::kQ4_1>();
    case DType::kQ5_0:
      return body.template operator()<DType::kQ5_0>();
    case DType::kQ5_1:
      return body.template operator()<DType::kQ5_1>();
    case DType::kQ8_0:
      return body.template operator()<DType::kQ8_0>();
    case DType::kQ2_K:
      return body.template operator()<DType::kQ2_K>();
    case DType::kQ3_K:
      return body.template operator()<DType::kQ3_K>();
    case DType::kQ4_K:
      return body.template operator()<DType::kQ4_K>();
    case DType::kQ5_K:
      return body.template operator()<DType::kQ5_K>();
    case DType::kQ6_K:
      return body.template operator()<DType::kQ6_K>();
    case DType::kIQ4_NL:
      return body.template operator()<DType::kIQ4_NL>();
    case DType::kIQ4_XS:
      return body.template operator()<DType::kIQ4_XS>();
    case DType::kMXFP4:
      return body.template operator()<DType::kMXFP4>();
    case DType::kF16:
      return body.template operator()<DType::kF16>();
    case DType::kBF16:
      return body.template operator()<DType::kBF16>();
    case DType::kF32:
    case DType::kI32:
      break;
  }
}

}  // namespace

bool tiles_take(DType weight) {
  bool takes = false;
  with_format(weight, [&]<DType>() { takes = true; });
  return takes;
}

void launch_tiled_matmul(const TiledMatmul& args, DType weight, bool gated, const DeviceProperties& device,
                         cudaStream_t stream, std::string_view operation) {
  with_format(weight, [&]<DType kType>() { launch_tiled_matmul_of<kType>(args, gated, device, stream, operation); });
}

}  // namespace thalweg::cu::sm90
