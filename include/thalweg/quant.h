#pragma once

// Block formats of GGUF: pack and unpack on the host. Sizes are in dtype.h. Any thread may call these functions.

#include <cstdint>
#include <string_view>

#include "thalweg/api.h"
#include "thalweg/operation.h"
#include "thalweg/tensor.h"

THALWEG_API_BEGIN
namespace thalweg {

// Unpacks to f32, bit-identical to the formats' reference implementation, F16 and BF16 included.
struct DequantizeArgs {
  static constexpr std::string_view kName = "dequantize";
  ConstTensor blocks;  // [R,K] or [E,R,K], any dtype but I32; rows contiguous
  Tensor values;       // like blocks, f32
};

// Packs from f32, round to nearest, deterministic. Takes the dtypes of can_pack(). Values that are NaN or infinite are
// refused, where they are in memory of the host.
struct QuantizeArgs {
  static constexpr std::string_view kName = "quantize";
  ConstTensor values;  // [R,K] or [E,R,K], f32
  Tensor blocks;       // like values; rows contiguous
};

// Whether the library packs this dtype: all but I32, IQ4_XS.
bool can_pack(DType dtype);

void dequantize(const DequantizeArgs& a, Workspace w, const Stream& s);
void quantize(const QuantizeArgs& a, Workspace w, const Stream& s);

}  // namespace thalweg
THALWEG_API_END
