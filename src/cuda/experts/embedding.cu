// embedding: a thread unpacks 32 weights of a block format, or copies four elements of a plain type.

#include "cuda/common/pdl.h"
#include "cuda/common/tensor_view.h"
#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/formats/dispatch.h"
#include "cuda/experts/formats/formats.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 128;
constexpr int kSubBlock = 32;
constexpr int kElements = 4;

struct Lookup {
  const std::uint8_t* table = nullptr;
  std::int64_t row_bytes = 0;
  std::int64_t vocabulary = 0;
  const std::int32_t* ids = nullptr;
  Elements y;
  int width = 0;
};

template <DType kType>
__device__ void unpack_piece(const std::uint8_t* row, int piece, int width, const Elements& y, std::int64_t to) {
  if constexpr (kBlockWeights < kType >> 1) {
    using Packed = PackedWeights<kType>;
    constexpr int kPerBlock = kBlockWeights<kType> / kSubBlock;
    const Packed packed =
        Packed::read(row + static_cast<std::int64_t>(piece / kPerBlock) * kBlockBytes<kType>, piece % kPerBlock);
#pragma unroll
    for (int j = 0; j < kSubBlock / 8; ++j) {
      const uint2 codes = packed.codes(j);
      const Scaling group = packed.scaling(j / 2);
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const std::uint32_t code = (i < 4 ? codes.x : codes.y) >> (8 * (i % 4)) & 0xFFU;
        // Exactly what dequantize gives: the product of code and scale has at most 24 bits.
        y.store(to + piece * kSubBlock + 8 * j + i, fmaf(static_cast<float>(code), group.scale, group.offset));
      }
    }
  } else {
    using Plain = std::conditional_t<kType == DType::kF32, float, std::conditional_t<kType == DType::kF16, F16, Bf16>>;
    const auto* from = reinterpret_cast<const Plain*>(row);
    for (int i = piece * kElements; i < min(width, (piece + 1) * kElements); ++i) y.store(to + i, to_f32(from[i]));
  }
}

template <DType kType>
__global__ void __launch_bounds__(kThreads) look_up(const __grid_constant__ Lookup p) {
  pdl_trigger_and_wait();
  const auto t = static_cast<std::int64_t>(blockIdx.x);
  const std::int32_t id = p.ids[t];
  const int piece = static_cast<int>(blockIdx.y * kThreads + threadIdx.x);
  constexpr int kPiece = kBlockWeights < kType >> 1 ? kSubBlock : kElements;
  if (piece * kPiece >= p.width) return;
  if (id < 0 || id >= p.vocabulary) {
    for (int i = piece * kPiece; i < min(p.width, (piece + 1) * kPiece); ++i) p.y.store(p.y.offset(t) + i, 0.0F);
    return;
  }
  unpack_piece<kType>(p.table + id * p.row_bytes, piece, p.width, p.y, p.y.offset(t));
}

std::string supports(const EmbeddingArgs& args, const Stream&) {
  return is_block_format(args.table.dtype) ? aligned_blocks(args.table) : std::string();
}

void run(const EmbeddingArgs& args, Workspace, const Stream& stream) {
  if (args.y.size() == 0) return;
  Lookup p;
  p.table = static_cast<const std::uint8_t*>(args.table.data);
  p.row_bytes = bytes_of(args.table.dtype, args.table.stride(0));
  p.vocabulary = args.table.dim(0);
  p.ids = static_cast<const std::int32_t*>(args.ids.data);
  p.y = elements(args.y);
  p.width = static_cast<int>(args.table.dim(1));
  void (*kernel)(Lookup) = nullptr;
  dispatch_format(args.table.dtype, [&]<DType kType>() { kernel = look_up<kType>; });
  const int piece = is_block_format(args.table.dtype) ? kSubBlock : kElements;
  const int pieces = (p.width + piece - 1) / piece;
  const dim3 grid(static_cast<unsigned>(args.ids.dim(0)), static_cast<unsigned>((pieces + kThreads - 1) / kThreads));
  const CurrentDevice current(stream, args.kName);
  pdl_launch(kernel, grid, kThreads, 0, properties(stream.device.index), native(stream), args.kName, p);
}

}  // namespace

KernelList<EmbeddingArgs> embedding_kernels() {
  static constexpr Kernel<EmbeddingArgs> kKernels[] = {{"rows", supports, no_workspace<EmbeddingArgs>, run}};
  return kKernels;
}

}  // namespace thalweg::cu
