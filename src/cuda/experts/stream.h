#pragma once

// The weight-streaming kernels, by format, each instantiated in a file of its family, and a product in two steps, for
// those that share rows or activations.

#include "cuda/experts/expert_lists.h"
#include "cuda/experts/experts.h"

namespace thalweg::cu {

// Of each row `slices` slices: of block formats as in activation_slices.h, else of bf16.
struct StreamActivations {
  const std::uint16_t* data;
  const float* factors;  // of the rows' results; null: 1
  int slices;
};

struct StreamKernel {
  void (*kernel)(ExpertMatmul, ExpertLists, StreamActivations, int);
  int shared_bytes;
  int rows;    // weight rows of a strip
  int slice;   // weights of a row; activations are padded to whole slices
  bool codes;  // takes activations in ActivationOrder::kSlices; else in kRows
  int item_rows;
};

// For items of up to 8, 16 or 32 rows; of plain types those for 8 are those for 16. aligned: weight rows begin at
// multiples of 16 bytes; where they do not, there may be no kernel.
template <DType kType>
StreamKernel stream_kernel(int item_rows, bool aligned);

// How x[T,K] or [T,S,K] meets weight[E,N,K] or [N,K]: the shape of the kernel, and the lists and activations that it
// reads, which prepare_experts() writes. Several products may share a plan.
struct StreamPlan {
  StreamKernel kernel;
  ExpertPlan experts;

  StreamPlan(const ConstTensor& x, const ConstTensor& weight, std::int64_t pairs, Arena& arena);
};
void launch_stream(const StreamPlan& plan, const ExpertMatmul& p, const ConstTensor& weight, const Stream& stream,
                   std::string_view operation);

}  // namespace thalweg::cu

// For a file that includes stream_kernel.h.
#define THALWEG_EXPERT_STREAM(type)                                            \
  template <>                                                                  \
  StreamKernel stream_kernel<DType::type>(int item_rows, bool aligned) {       \
    constexpr int kLeast = is_block_format(DType::type) ? 1 : 2;               \
    if (item_rows <= 8) return stream_kernel_of<DType::type, kLeast>(aligned); \
    if (item_rows <= 16) return stream_kernel_of<DType::type, 2>(aligned);     \
    return stream_kernel_of<DType::type, 4>(aligned);                          \
  }
