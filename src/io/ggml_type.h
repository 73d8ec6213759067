#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "thalweg/dtype.h"

namespace thalweg::io {

// A tensor type as GGUF files number it. Files may hold types that the library does not compute with; those that are
// known have a size, so that the extent of their tensors can be checked.
struct GgmlType {
  std::uint32_t number;
  std::string name;            // "Q4_K", or "type 99" if unknown
  std::optional<DType> dtype;  // none: the library does not compute with it
  int block_size;              // 0 if unknown
  int block_bytes;
};

GgmlType ggml_type(std::uint32_t number);
std::uint32_t ggml_type_number(DType dtype);

}  // namespace thalweg::io
