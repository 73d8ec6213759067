#include "cpu/expert_matmul.h"
#include "cpu/moe.h"
#include "cpu/scratch.h"
#include "cpu/tile_matmul.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {

void store_product(const LinearArgs& args, std::int64_t i, std::int64_t n, std::int64_t count, float* sums) {
  if (args.bias.defined()) vector_ops().axpy(1.0F, static_cast<const float*>(args.bias.data) + n, count, sums);
  char* row = static_cast<char*>(args.y.row(i)) + bytes_of(args.y.dtype, n);
  if (args.y.dtype == DType::kF32) return copy_sums(sums, count, reinterpret_cast<float*>(row));
  vector_ops().store(args.y.dtype, sums, count, row);
}

namespace {

template <bool kQ8>
std::size_t linear_workspace(const LinearArgs& args, const Stream& stream) {
  Arena arena;
  const ProductMemory counted(args.x, kQ8, stream, arena);
  return arena.used();
}

template <bool kQ8>
void run_linear(const LinearArgs& args, Workspace workspace, const Stream& stream) {
  Arena arena(workspace);
  const ProductMemory memory(args.x, kQ8, stream, arena);
  memory.activations.prepare(stream);
  multiply_matrix(
      stream, WeightMatrix::of(args.weight), kQ8, args.x.dim(0),
      [&](std::int64_t i) { return memory.activations.row(i, 0); },
      [&](std::int64_t i, std::int64_t n, std::int64_t count, float* sums) { store_product(args, i, n, count, sums); },
      memory.scratch);
}

template <bool kQ8>
double linear_cost(const LinearArgs& args, const Stream& stream) {
  const std::int64_t rows = args.x.dim(0);
  const std::int64_t passes = (rows + kRowsPerPass - 1) / kRowsPerPass;
  return tuning::product_us(tuning::product_cost(kQ8), static_cast<double>(passes), static_cast<double>(rows),
                            static_cast<double>(args.weight.size()), thread_count(stream));
}

// ---- Matrix units

struct TileMemory {
  TileRows activations;
  float* scratch;

  TileMemory(const LinearArgs& args, const Stream& stream, Arena& arena)
      : activations(tile_groups(args.x.dim(0)), args.x.dim(1), arena),
        scratch(arena.take<float>(kTileScratchFloats * thread_count(stream))) {}
};

std::size_t tile_workspace(const LinearArgs& args, const Stream& stream) {
  Arena arena;
  const TileMemory counted(args, stream, arena);
  return arena.used();
}

void run_tiles(const LinearArgs& args, Workspace workspace, const Stream& stream) {
  Arena arena(workspace);
  const TileMemory memory(args, stream, arena);
  const std::int64_t rows = args.x.dim(0);
  memory.activations.pack(stream, args.x.dtype, tile_groups(rows), [&](std::int64_t group, std::int64_t i) {
    const std::int64_t row = group * kTileSide + i;
    return row < rows ? args.x.row(row) : nullptr;
  });
  multiply_tile_matrix(
      stream, WeightMatrix::of(args.weight), memory.activations, rows,
      [&](std::int64_t i, std::int64_t n, std::int64_t count, float* sums) { store_product(args, i, n, count, sums); },
      memory.scratch);
}

double tile_cost(const LinearArgs& args, const Stream& stream) {
  return hinted_cost(
      args, stream,
      [&](const LinearArgs& a) {
        return tile_product_us(1.0, static_cast<double>(a.x.dim(0)), static_cast<double>(a.weight.size()), stream);
      },
      [&](const LinearArgs& a) {
        return uses_q8(a.precision, a.weight.dtype) ? linear_cost<true>(a, stream) : linear_cost<false>(a, stream);
      });
}

constexpr Kernel<LinearArgs> kLinear[] = {
    {.name = "q8",
     .supports = [](const LinearArgs& args, const Stream&) { return q8_reason(args.precision, args.weight.dtype); },
     .workspace = linear_workspace<true>,
     .run = run_linear<true>,
     .remark = [](const LinearArgs&) { return q8_remark(); },
     .arithmetic = Arithmetic::k8Bit,
     .cost = linear_cost<true>},
    {.name = "amx",
     .supports = [](const LinearArgs& args, const Stream&) { return tile_reason(args.precision, args.weight.dtype); },
     .workspace = tile_workspace,
     .run = run_tiles,
     .remark = [](const LinearArgs&) { return tile_remark(); },
     .arithmetic = Arithmetic::k16Bit,
     .cost = tile_cost},
    {.name = "exact",
     .supports = always_supported<LinearArgs>,
     .workspace = linear_workspace<false>,
     .run = run_linear<false>,
     .remark = [](const LinearArgs& args) { return exact_remark(args.precision, args.weight.dtype); },
     .cost = linear_cost<false>}};

}  // namespace

KernelList<LinearArgs> linear_kernels() { return kLinear; }

}  // namespace thalweg::cpu
