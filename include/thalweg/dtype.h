#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "thalweg/api.h"

THALWEG_API_BEGIN
namespace thalweg {

// Constant properties: any thread may read them.

// Element types of tensors. The block formats from kQ4_0 on are GGUF's, with the bytes of a file: a run of
// `block_size` weights along the innermost dimension is packed into `block_bytes` bytes.
enum class DType : std::uint8_t {
  kF32,
  kF16,
  kBF16,
  kI32,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ2_K,
  kQ3_K,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kIQ4_NL,
  kIQ4_XS,
  kMXFP4,
};

inline constexpr int kNumDTypes = 17;

struct DTypeInfo {
  std::string_view name;  // of GGUF tools: "Q4_K"
  int block_size;         // weights in a block, 1 for plain types
  int block_bytes;        // bytes of a block
};

// Properties of a dtype; constexpr, so that block sizes can be used as template arguments.
constexpr DTypeInfo dtype_info(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return {"F32", 1, 4};
    case DType::kF16:
      return {"F16", 1, 2};
    case DType::kBF16:
      return {"BF16", 1, 2};
    case DType::kI32:
      return {"I32", 1, 4};
    case DType::kQ4_0:
      return {"Q4_0", 32, 18};
    case DType::kQ4_1:
      return {"Q4_1", 32, 20};
    case DType::kQ5_0:
      return {"Q5_0", 32, 22};
    case DType::kQ5_1:
      return {"Q5_1", 32, 24};
    case DType::kQ8_0:
      return {"Q8_0", 32, 34};
    case DType::kQ2_K:
      return {"Q2_K", 256, 84};
    case DType::kQ3_K:
      return {"Q3_K", 256, 110};
    case DType::kQ4_K:
      return {"Q4_K", 256, 144};
    case DType::kQ5_K:
      return {"Q5_K", 256, 176};
    case DType::kQ6_K:
      return {"Q6_K", 256, 210};
    case DType::kIQ4_NL:
      return {"IQ4_NL", 32, 18};
    case DType::kIQ4_XS:
      return {"IQ4_XS", 256, 136};
    case DType::kMXFP4:
      return {"MXFP4", 32, 17};
  }
  return {"?", 1, 1};
}

constexpr std::string_view dtype_name(DType dtype) { return dtype_info(dtype).name; }

// A format whose elements cannot be addressed one by one.
constexpr bool is_block_format(DType dtype) { return dtype_info(dtype).block_size > 1; }

// F32, F16 or BF16: the types of activations.
constexpr bool is_float(DType dtype) { return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16; }

// Bytes of `count` consecutive elements; `count` is a multiple of the block size.
constexpr std::int64_t bytes_of(DType dtype, std::int64_t count) {
  const DTypeInfo info = dtype_info(dtype);
  return count / info.block_size * info.block_bytes;
}

}  // namespace thalweg
THALWEG_API_END
