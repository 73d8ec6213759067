// Packing and unpacking, by segments of rows. A block never depends on another, so neither does a result on the
// segments.

#include <algorithm>
#include <array>

#include "core/threads.h"
#include "cpu/kernels.h"
#include "cpu/tuning.h"
#include "quant/pack.h"
#include "quant/unpack.h"

namespace thalweg::cpu {
namespace {

// body(row, first, count) for segments of the rows of [rows,width]. A segment is a multiple of every block size, and
// long enough that handing it out costs nothing.
template <class Body>
void for_each_segment(const Stream& stream, std::int64_t rows, std::int64_t width, double element_ns, Body&& body) {
  constexpr std::int64_t kSegment = 4096;
  const std::int64_t segments = (width + kSegment - 1) / kSegment;
  const double segment_ns = static_cast<double>(std::min(kSegment, width)) * element_ns;
  parallel_for(stream, rows * segments, segment_ns, [&](std::int64_t task, int) {
    const std::int64_t first = task % segments * kSegment;
    body(task / segments, first, std::min(kSegment, width - first));
  });
}

// [R,K] or [E,R,K].
template <class Pointer>
std::int64_t rows_of(const BasicTensor<Pointer>& tensor) {
  return tensor.rank == 3 ? tensor.dim(0) * tensor.dim(1) : tensor.dim(0);
}
template <class Pointer>
Pointer row_of(const BasicTensor<Pointer>& tensor, std::int64_t row) {
  return tensor.rank == 3 ? tensor.row(row / tensor.dim(1), row % tensor.dim(1)) : tensor.row(row);
}

void dequantize_rows(const DequantizeArgs& args, Workspace, const Stream& stream) {
  const DType dtype = args.blocks.dtype;
  for_each_segment(stream, rows_of(args.blocks), args.blocks.dim(args.blocks.rank - 1), tuning::kUnpackNs,
                   [&](std::int64_t row, std::int64_t first, std::int64_t count) {
                     const auto* blocks = static_cast<const char*>(row_of(args.blocks, row)) + bytes_of(dtype, first);
                     unpack(dtype, blocks, count, static_cast<float*>(row_of(args.values, row)) + first);
                   });
}

void quantize_rows(const QuantizeArgs& args, Workspace, const Stream& stream) {
  const DType dtype = args.blocks.dtype;
  for_each_segment(stream, rows_of(args.values), args.values.dim(args.values.rank - 1), tuning::kPackNs,
                   [&](std::int64_t row, std::int64_t first, std::int64_t count) {
                     auto* blocks = static_cast<char*>(row_of(args.blocks, row)) + bytes_of(dtype, first);
                     pack(dtype, static_cast<const float*>(row_of(args.values, row)) + first, count, blocks);
                   });
}

constexpr std::array kDequantizeKernels = {
    Kernel<DequantizeArgs>{"rows", always_supported<DequantizeArgs>, no_workspace<DequantizeArgs>, dequantize_rows}};
constexpr std::array kQuantizeKernels = {
    Kernel<QuantizeArgs>{"rows", always_supported<QuantizeArgs>, no_workspace<QuantizeArgs>, quantize_rows}};

}  // namespace

void add_quant_kernels(Backend& backend) {
  std::get<KernelList<DequantizeArgs>>(backend.kernels) = kDequantizeKernels;
  std::get<KernelList<QuantizeArgs>>(backend.kernels) = kQuantizeKernels;
}

}  // namespace thalweg::cpu
