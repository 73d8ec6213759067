#include "io/ggml_type.h"

#include <string_view>

namespace thalweg::io {
namespace {

struct Foreign {
  std::uint32_t number;
  std::string_view name;
  int block_size;
  int block_bytes;
};

constexpr Foreign kForeign[] = {
    {16, "IQ2_XXS", 256, 66}, {17, "IQ2_XS", 256, 74}, {18, "IQ3_XXS", 256, 98}, {19, "IQ1_S", 256, 50},
    {21, "IQ3_S", 256, 110},  {22, "IQ2_S", 256, 82},  {24, "I8", 1, 1},         {25, "I16", 1, 2},
    {27, "I64", 1, 8},        {28, "F64", 1, 8},       {29, "IQ1_M", 256, 56},   {34, "TQ1_0", 256, 54},
    {35, "TQ2_0", 256, 66},   {40, "NVFP4", 64, 36},   {41, "Q1_0", 128, 18},
};

}  // namespace

std::uint32_t ggml_type_number(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return 0;
    case DType::kF16:
      return 1;
    case DType::kBF16:
      return 30;
    case DType::kI32:
      return 26;
    case DType::kQ4_0:
      return 2;
    case DType::kQ4_1:
      return 3;
    case DType::kQ5_0:
      return 6;
    case DType::kQ5_1:
      return 7;
    case DType::kQ8_0:
      return 8;
    case DType::kQ2_K:
      return 10;
    case DType::kQ3_K:
      return 11;
    case DType::kQ4_K:
      return 12;
    case DType::kQ5_K:
      return 13;
    case DType::kQ6_K:
      return 14;
    case DType::kIQ4_NL:
      return 20;
    case DType::kIQ4_XS:
      return 23;
    case DType::kMXFP4:
      return 39;
  }
  return 0;
}

GgmlType ggml_type(std::uint32_t number) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (ggml_type_number(dtype) != number) continue;
    const DTypeInfo info = dtype_info(dtype);
    return {number, std::string(info.name), dtype, info.block_size, info.block_bytes};
  }
  for (const Foreign& type : kForeign) {
    if (type.number == number) return {number, std::string(type.name), {}, type.block_size, type.block_bytes};
  }
  return {number, "type " + std::to_string(number), {}, 0, 0};
}

}  // namespace thalweg::io
