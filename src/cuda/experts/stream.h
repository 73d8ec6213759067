#pragma once

// The streaming kernels by format, instantiated in instances/, and the plan of a product, which several products may
// share.

#include "cuda/experts/expert_lists.h"
#include "cuda/experts/experts.h"

namespace thalweg::cu {

// Activations, `k_tiles` K tiles per row: records (activation_records.h) for products of codes, else bf16.
struct StreamActivations {
  const std::uint16_t* data;
  const float* factors;  // of the results of each row; null: 1
  int k_tiles;
};

// Another product of the same activations and lists, by the second half of the blocks; absent: null.
struct SecondProduct {
  const std::uint8_t* weights = nullptr;
  void* y = nullptr;
};

struct StreamKernel {
  void (*kernel)(ExpertMatmul, ExpertLists, StreamActivations, int, SecondProduct);
  int shared_bytes;
  int rows;    // weight rows per row tile
  int tile_k;  // columns per K tile; activations are padded to whole K tiles
  bool codes;  // activations in ActivationOrder::kRecords, else in kRows
  int item_rows;
};

// The kernel for items of up to 8, 16 or 32 rows; plain types have none for 8. aligned: weight rows begin at multiples
// of 16 bytes; where they do not, there may be no kernel.
template <DType kType>
StreamKernel stream_kernel(int item_rows, bool aligned);

// How x[T,K] or [T,S,K] meets weight[E,N,K] or [N,K]: the shape of the kernel, and the lists and activations that it
// reads, which prepare_experts() writes. Several products may share a plan.
struct StreamPlan {
  StreamKernel kernel;
  ExpertPlan experts;

  StreamPlan(const ConstTensor& x, const ConstTensor& weight, std::int64_t pairs, Arena& arena);
};
// second: of weights of the same shape, format and strides, y as p.y.
void launch_stream(const StreamPlan& plan, const ExpertMatmul& p, const ConstTensor& weight, const Stream& stream,
                   std::string_view operation, const SecondProduct& second = {});

}  // namespace thalweg::cu

// Instantiates a format; for files that include stream_kernel.h.
#define THALWEG_EXPERT_STREAM(type)                                            \
  template <>                                                                  \
  StreamKernel stream_kernel<DType::type>(int item_rows, bool aligned) {       \
    constexpr int kLeast = is_block_format(DType::type) ? 1 : 2;               \
    if (item_rows <= 8) return stream_kernel_of<DType::type, kLeast>(aligned); \
    if (item_rows <= 16) return stream_kernel_of<DType::type, 2>(aligned);     \
    return stream_kernel_of<DType::type, 4>(aligned);                          \
  }
