#pragma once

// The weight-streaming kernels, by format: each is instantiated in a file of its family.

#include "cuda/device/experts.h"

namespace thalweg::cu {

struct StreamKernel {
  void (*kernel)(ExpertMatmul, ExpertLists, const std::uint16_t*, int, int);
  int shared_bytes;
  int slice;   // weights of a row; activations are padded to whole slices
  bool exact;  // takes rows aligned to 16 bytes; else to a block's own alignment
};

// For items of up to 16 or 32 rows.
template <DType kType>
StreamKernel stream_kernel(int item_rows);

}  // namespace thalweg::cu

// For a file that includes device/expert_stream.h.
#define THALWEG_EXPERT_STREAM(type)                                                                       \
  template <>                                                                                             \
  StreamKernel stream_kernel<DType::type>(int item_rows) {                                                \
    const auto kernel = [&]<int kTiles>() -> StreamKernel {                                               \
      using Tile = StreamTile<DType::type, kTiles>;                                                       \
      return {expert_stream_kernel<DType::type, kTiles>, Tile::kSharedBytes, Tile::kSlice, Tile::kExact}; \
    };                                                                                                    \
    return item_rows == 16 ? kernel.operator()<2>() : kernel.operator()<4>();                             \
  }
