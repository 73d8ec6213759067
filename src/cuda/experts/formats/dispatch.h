#pragma once

// The one switch over the formats of weights.

#include <type_traits>

#include "thalweg/dtype.h"

namespace thalweg::cu {

// Calls body.operator()<kType>() for a format of weights, a block format or F32, F16 or BF16, and returns its result;
// for I32 returns Result{}.
template <class Body>
auto dispatch_format(DType type, Body&& body) {
  switch (type) {
    case DType::kF32:
      return body.template operator()<DType::kF32>();
    case DType::kF16:
      return body.template operator()<DType::kF16>();
    case DType::kBF16:
      return body.template operator()<DType::kBF16>();
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
    case DType::kI32:
      break;
  }
  using Result = decltype(body.template operator()<DType::kF32>());
  if constexpr (!std::is_void_v<Result>) return Result{};
}

// The same for block formats; returns Result{} for all other types.
template <class Body>
auto dispatch_block_format(DType type, Body&& body) {
  using Result = decltype(body.template operator()<DType::kQ4_0>());
  return dispatch_format(type, [&]<DType kType>() -> Result {
    if constexpr (is_block_format(kType)) {
      return body.template operator()<kType>();
    } else if constexpr (!std::is_void_v<Result>) {
      return Result{};
    }
  });
}

}  // namespace thalweg::cu
