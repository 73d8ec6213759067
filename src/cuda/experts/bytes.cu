// linear's `bytes`: one row of activations times weights in K-quants or Q8_0, as bytes on the tensor cores
// (row_bytes.h). Two launches: the row's records, then the products.
//
// Roles: all warps are alike. A warp multiplies runs of 16 rows one after the other; where a block has few, several
// warps share rows and divide the columns.
// Shared memory: the row's records [K / 256]; a ring of raw K tiles for each warp; the results [k_warps][rows].
// Pipeline: a warp fills its ring by cp.async, first before the wait for the launch ahead, and waits for no other.

#include <algorithm>
#include <string>

#include "cuda/common/pdl.h"
#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/experts.h"
#include "cuda/experts/formats/dispatch.h"
#include "cuda/experts/row_bytes_ring.h"
#include "cuda/experts/row_products.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

// Warps of a block at least and at most, and of a multiprocessor, as far as registers reach.
constexpr int kFewestBytesWarps = 4;
template <DType kType>
constexpr int kMostBytesWarps = kType == DType::kQ6_K ? 8 : 5;
template <DType kType>
constexpr int kBytesResidentWarps = kType == DType::kQ6_K ? 16 : 20;

// How a block divides its rows and their columns.
struct BytesShape {
  int warps;     // of the block
  int k_tiles;   // of a row
  int k_warps;   // warps that share rows, each with every k_warps-th K tile
  int units;     // groups of k_warps warps, each with rows of its own
  int runs;      // of kRunRows rows of a unit, one after the other
  bool fetches;  // the block's rows to the L2 cache before the wait for the launch ahead

  __host__ __device__ int block_rows() const { return units * runs * kRunRows; }
  // Where the rings of the warps begin in shared memory, after the activations.
  __host__ __device__ int rings_at() const { return fixed_records_bytes(k_tiles); }
  // Where the results are, after the rings.
  __host__ __device__ int results_at(int ring_bytes) const { return rings_at() + warps * ring_bytes; }
};

constexpr int kRecordWarps = 8;

// Writes the records [K / 256] of the row, a K tile by each warp.
__global__ void __launch_bounds__(kRecordWarps* kWarpSize)
    row_records_kernel(const __grid_constant__ Elements x, int k_tiles, std::uint8_t* records) {
  const int k_tile = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x) / kWarpSize;
  pdl_wait();
  pdl_trigger();  // not before: the kernel behind copies weights without a wait of its own, which one ahead may write
  if (k_tile >= k_tiles) return;
  float eight[8];
  read_fixed_lane<FixedOrder::kEights>(x, x.offset(0) + k_tile * kFixedTileK, eight);
  write_fixed_record<FixedOrder::kEights>(eight, records + k_tile * kFixedRecordBytes);
}

template <DType kType>
__global__ void __launch_bounds__(kMostBytesWarps<kType>* kWarpSize,
                                  kBytesResidentWarps<kType> / kMostBytesWarps<kType>)
    bytes_kernel(const __grid_constant__ ExpertMatmul p, const std::uint8_t* records,
                 const __grid_constant__ BytesShape shape) {
  using Ring = RowByteRing<kType>;
  extern __shared__ __align__(128) std::uint8_t memory[];
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int lane = thread % kWarpSize;
  const int unit = warp / shape.k_warps;
  const int first_k_tile = warp - unit * shape.k_warps;
  const int block_row = static_cast<int>(blockIdx.x) * shape.block_rows();
  const int rows = min(shape.block_rows(), p.n - block_row);  // of the block
  const int first_row = unit * kRunRows;
  const int stride = shape.units * kRunRows;
  const std::uint8_t* const weights = p.weights + block_row * p.row_bytes;
  RowByteRuns own{};
  own.first = weights + first_row * p.row_bytes;
  own.end = p.weights + p.n * p.row_bytes;
  own.row_bytes = static_cast<int>(p.row_bytes);
  own.runs = min(shape.runs, (max(rows - first_row, 0) + stride - 1) / stride);
  own.stride = stride;
  own.first_k_tile = first_k_tile;
  own.k_step = shape.k_warps;
  own.k_tiles = shape.k_tiles;
  p.order.begin();
  Ring ring(own, memory + shape.rings_at() + warp * Ring::kRingBytes);
  ring.begin();
  if (shape.fetches) prefetch_to_l2(weights, rows * p.row_bytes, thread, shape.warps * kWarpSize);
  p.order.wait();
  const int vectors = fixed_records_bytes(shape.k_tiles) / 16;
#pragma unroll 4
  for (int i = thread; i < vectors; i += shape.warps * kWarpSize) {
    reinterpret_cast<uint4*>(memory)[i] = __ldcg(reinterpret_cast<const uint4*>(records) + i);
  }
  __syncthreads();

  auto* const results = reinterpret_cast<float*>(memory + shape.results_at(Ring::kRingBytes));
  float* const to = results + first_k_tile * shape.block_rows() + first_row + lane / 4;
  ring.multiply(memory, [&](int run, const float(&sums)[2]) {
    if (lane % 4 == 0) to[run * stride] = sums[0], to[run * stride + 8] = sums[1];
  });
  __syncthreads();
  const std::int64_t y = p.y.offset(0);
  for (int row = thread; row < rows; row += shape.warps * kWarpSize) {
    float sum = 0.0F;
    for (int i = 0; i < shape.k_warps; ++i) sum += results[i * shape.block_rows() + row];
    store_result(p, y + block_row + row, block_row + row, sum);
  }
  p.order.end();
}

constexpr std::int64_t kMostK = 32768;
constexpr int kMostRuns = 32;  // of a unit

struct BytesKernel {
  void (*kernel)(ExpertMatmul, const std::uint8_t*, BytesShape) = nullptr;
  int ring_bytes = 0;
  int most_warps = 0;  // of a block
  int resident_warps = 0;
};
BytesKernel kernel_for(DType type) {
  return dispatch_format(type, [&]<DType kType>() -> BytesKernel {
    if constexpr (kHasByteCodes<kType>) {
      return {bytes_kernel<kType>, RowByteRing<kType>::kRingBytes, kMostBytesWarps<kType>, kBytesResidentWarps<kType>};
    }
    return {};
  });
}

int shared_bytes(const BytesShape& shape, int ring_bytes) {
  return shape.results_at(ring_bytes) + 4 * shape.k_warps * shape.block_rows();
}

// How many blocks of the shape a multiprocessor has.
int resident_blocks(const BytesShape& shape, const BytesKernel& kernel, const DeviceProperties& device) {
  constexpr int kReserved = 1024;
  return std::min(kernel.resident_warps / shape.warps,
                  (device.shared_bytes + kReserved) / (shared_bytes(shape, kernel.ring_bytes) + kReserved));
}

// Divides rows so that warps have the fewest steps, a K tile of a run each. Without warps if no block fits.
BytesShape shape_of(std::int64_t n, std::int64_t k, const BytesKernel& kernel, const DeviceProperties& device) {
  BytesShape best{};
  std::int64_t fewest = 0;
  const std::int64_t all_runs = std::max<std::int64_t>(n / kRunRows, 1);
  const auto k_tiles = static_cast<int>(k / kFixedTileK);
  for (int warps = kFewestBytesWarps; warps <= kernel.most_warps; ++warps) {
    for (int k_warps = 1; k_warps <= std::min(warps, k_tiles); ++k_warps) {
      if (warps % k_warps != 0) continue;
      for (int blocks = kernel.resident_warps / warps; blocks >= 1; --blocks) {
        BytesShape shape{warps, k_tiles, k_warps, warps / k_warps, 1, false};
        const std::int64_t units = std::int64_t{device.multiprocessors} * blocks * shape.units;
        const std::int64_t runs = (all_runs + units - 1) / units;
        const std::int64_t rounds = (runs + kMostRuns - 1) / kMostRuns;
        shape.runs = static_cast<int>((runs + rounds - 1) / rounds);
        if (resident_blocks(shape, kernel, device) < blocks) continue;
        const std::int64_t steps = rounds * shape.runs * ((k_tiles + k_warps - 1) / k_warps);
        if (fewest == 0 || steps < fewest) fewest = steps, best = shape;
        break;
      }
    }
  }
  constexpr std::int64_t kMostFetched = 128 << 10;
  best.fetches = bytes_of(DType::kQ8_0, best.block_rows() * k) <= kMostFetched;
  return best;
}

}  // namespace

std::string bytes_supports(const ConstTensor& weight, std::int64_t rows, const DeviceProperties& device) {
  const BytesKernel kernel = kernel_for(weight.dtype);
  if (kernel.kernel == nullptr) return "takes weights of Q4_K, Q5_K, Q6_K or Q8_0";
  if (rows > 1) return "takes one row";
  const std::int64_t n = weight.dim(0);
  const std::int64_t k = weight.dim(1);
  if (k % kFixedTileK != 0 || k > kMostK) {
    return "takes K that is a multiple of " + std::to_string(kFixedTileK) + " up to " + std::to_string(kMostK);
  }
  if (n % kRunRows != 0) return "takes N that is a multiple of " + std::to_string(kRunRows);
  if (weight.stride(0) != k) return "takes a matrix whose rows lie together";
  if (shape_of(n, k, kernel, device).warps == 0) return "has too little shared memory for rows this long";
  return weight.dtype == DType::kQ6_K ? aligned_blocks(weight) : aligned_rows(weight);
}

std::size_t bytes_workspace(std::int64_t k) {
  return static_cast<std::size_t>(fixed_records_bytes(static_cast<int>(k / kFixedTileK)));
}

void write_row_records(const ConstTensor& x, Workspace workspace, const Stream& stream, std::string_view operation) {
  const auto k_tiles = static_cast<int>(x.dim(1) / kFixedTileK);
  pdl_launch(row_records_kernel, dim3(static_cast<unsigned>((k_tiles + kRecordWarps - 1) / kRecordWarps)),
             kRecordWarps * kWarpSize, 0, properties(stream.device.index), native(stream), operation, elements(x),
             k_tiles, static_cast<std::uint8_t*>(workspace.data));
}

void run_bytes(const ExpertMatmul& p, const ConstTensor& weight, Workspace workspace, const Stream& stream,
               std::string_view operation) {
  if (p.ids.pairs == 0 || p.n == 0) return;
  const DeviceProperties& device = properties(stream.device.index);
  const BytesKernel kernel = kernel_for(weight.dtype);
  const BytesShape shape = shape_of(p.n, p.k, kernel, device);
  const auto bytes = static_cast<std::size_t>(shared_bytes(shape, kernel.ring_bytes));
  allow_shared_memory(reinterpret_cast<const void*>(kernel.kernel), bytes, operation);
  const dim3 grid(static_cast<unsigned>((p.n + shape.block_rows() - 1) / shape.block_rows()));
  pdl_launch(kernel.kernel, grid, static_cast<unsigned>(shape.warps * kWarpSize), bytes, device, native(stream),
             operation, p, static_cast<const std::uint8_t*>(workspace.data), shape);
}

}  // namespace thalweg::cu
