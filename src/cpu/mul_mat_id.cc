#include "cpu/expert_matmul.h"
#include "cpu/moe.h"
#include "cpu/scratch.h"
#include "cpu/tile_matmul.h"
#include "cpu/tuning.h"

namespace thalweg::cpu {
namespace {

// ---- Rows grouped by expert: each weight is decoded once.

struct GroupedMemory {
  ExpertRows lists;
  ProductMemory product;

  GroupedMemory(const ExpertMatmulArgs& args, bool q8, const Stream& stream, Arena& arena)
      : lists(args.weight.dim(0), args.expert_ids.size(), arena), product(args.x, q8, stream, arena) {}
};

template <class Args, bool kQ8>
std::size_t grouped_workspace(const Args& args, const Stream& stream) {
  Arena arena;
  const GroupedMemory counted(args, kQ8, stream, arena);
  return arena.used();
}

void store_row(const ExpertMatmulArgs& args, std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
  const std::int64_t slots = args.expert_ids.dim(1);
  char* row = static_cast<char*>(args.y.row(pair / slots, pair % slots));
  vector_ops().store(args.y.dtype, sums, count, row + bytes_of(args.y.dtype, n));
}

template <class Args, bool kQ8>
void run_grouped(const Args& args, Workspace workspace, const Stream& stream) {
  Arena arena(workspace);
  GroupedMemory memory(args, kQ8, stream, arena);
  memory.lists.build(PairIds(args.expert_ids));
  memory.product.activations.prepare(stream);
  const std::int64_t slots = args.expert_ids.dim(1);
  for_each_expert_task(
      stream, memory.lists, args.weight, kQ8, memory.product.scratch,
      [&](std::int64_t expert, RowRange range, float* scratch) {
        multiply_expert(
            args.weight, expert, range, kQ8, memory.lists,
            [&](std::int64_t pair) { return memory.product.activations.row(pair / slots, pair % slots); },
            [&](std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
              store_row(args, pair, n, count, sums);
            },
            scratch);
      });
}

// ---- One matrix-vector product per slot.

template <class Args, bool kQ8>
std::size_t slot_workspace(const Args& args, const Stream& stream) {
  Arena arena;
  const ProductMemory counted(args.x, kQ8, stream, arena);
  return arena.used();
}

template <class Args, bool kQ8>
void run_slots(const Args& args, Workspace workspace, const Stream& stream) {
  Arena arena(workspace);
  const ProductMemory memory(args.x, kQ8, stream, arena);
  memory.activations.prepare(stream);
  const PairIds id(args.expert_ids);
  const std::int64_t slots = args.expert_ids.dim(1);
  const std::int64_t rows = args.weight.dim(1);
  const std::int64_t each = segments_of(rows);
  const double each_ns = segment_ns(args.weight.dtype, rows, args.weight.dim(2), 1, kQ8);
  for_each_segment(stream, args.expert_ids.size() * each, each_ns, [&](std::int64_t i, int worker, bool continues) {
    const std::int64_t pair = i / each;
    if (id(pair) < 0) return;
    multiply_rows(
        WeightMatrix::of(args.weight, id(pair)), segment_range(rows, i % each, continues), kQ8, 1,
        [&](std::int64_t) { return memory.activations.row(pair / slots, pair % slots); },
        [&](std::int64_t, std::int64_t n, std::int64_t count, const float* sums) {
          store_row(args, pair, n, count, sums);
        },
        memory.scratch + worker * product_floats());
  });
}

// ---- Matrix units: rows grouped by expert, too.

struct TileMemory {
  ExpertRows lists;
  ExpertGroups groups;
  TileRows activations;
  float* scratch;

  TileMemory(const ExpertMatmulArgs& args, const Stream& stream, Arena& arena)
      : lists(args.weight.dim(0), args.expert_ids.size(), arena),
        groups(lists, arena),
        activations(ExpertGroups::at_most(lists), args.weight.dim(2), arena),
        scratch(arena.take<float>(kTileScratchFloats * thread_count(stream))) {}
};

template <class Args>
std::size_t tile_workspace(const Args& args, const Stream& stream) {
  Arena arena;
  const TileMemory counted(args, stream, arena);
  return arena.used();
}

template <class Args>
void run_tiles(const Args& args, Workspace workspace, const Stream& stream) {
  Arena arena(workspace);
  TileMemory memory(args, stream, arena);
  memory.lists.build(PairIds(args.expert_ids));
  memory.groups.build();
  const std::int64_t slots = args.expert_ids.dim(1);
  memory.groups.pack(stream, args.x.dtype, memory.activations, [&](std::int64_t pair) {
    return args.x.rank == 3 ? args.x.row(pair / slots, pair % slots) : args.x.row(pair / slots);
  });
  memory.groups.for_each_task(stream, args.weight, memory.scratch,
                              [&](std::int64_t hit, RowRange range, float* scratch) {
                                memory.groups.multiply(
                                    args.weight, hit, range, memory.activations,
                                    [&](std::int64_t pair, std::int64_t n, std::int64_t count, const float* sums) {
                                      store_row(args, pair, n, count, sums);
                                    },
                                    scratch);
                              });
}

// ---- Kernels

template <class Args, bool kQ8>
std::string supports(const Args& args, const Stream&) {
  return kQ8 ? q8_reason(args.precision, args.weight.dtype) : "";
}
template <class Args, bool kQ8>
std::string remark(const Args& args) {
  return kQ8 ? q8_remark() : exact_remark(args.precision, args.weight.dtype);
}

double matrix_weights(const ExpertMatmulArgs& args) {
  return static_cast<double>(args.weight.dim(1)) * static_cast<double>(args.weight.dim(2));
}

// The grouped kernel decodes the weights of each hit expert once.
template <class Args, bool kQ8>
double grouped_cost(const Args& args, const Stream& stream) {
  const std::int64_t tokens = args.expert_ids.dim(0);
  const std::int64_t slots = args.expert_ids.dim(1);
  return tuning::product_us(tuning::product_cost(kQ8), tuning::expected_experts(args.weight.dim(0), tokens, slots),
                            static_cast<double>(tokens * slots), matrix_weights(args), thread_count(stream));
}

// The slot kernel decodes them once per slot.
template <class Args, bool kQ8>
double slot_cost(const Args& args, const Stream& stream) {
  const auto pairs = static_cast<double>(args.expert_ids.size());
  return tuning::product_us(tuning::product_cost(kQ8), pairs, pairs, matrix_weights(args), thread_count(stream));
}

template <class Args, bool kQ8>
constexpr Kernel<Args> grouped(std::string_view name) {
  return {.name = name,
          .supports = supports<Args, kQ8>,
          .workspace = grouped_workspace<Args, kQ8>,
          .run = run_grouped<Args, kQ8>,
          .remark = remark<Args, kQ8>,
          .arithmetic = kQ8 ? Arithmetic::k8Bit : Arithmetic::kF32,
          .cost = grouped_cost<Args, kQ8>};
}
template <class Args, bool kQ8>
constexpr Kernel<Args> by_slot(std::string_view name) {
  return {.name = name,
          .supports = supports<Args, kQ8>,
          .workspace = slot_workspace<Args, kQ8>,
          .run = run_slots<Args, kQ8>,
          .remark = remark<Args, kQ8>,
          .arithmetic = kQ8 ? Arithmetic::k8Bit : Arithmetic::kF32,
          .cost = slot_cost<Args, kQ8>};
}

template <class Args>
double tile_cost(const Args& args, const Stream& stream) {
  return hinted_cost(
      args, stream,
      [&](const Args& a) {
        const std::int64_t tokens = a.expert_ids.dim(0);
        const std::int64_t slots = a.expert_ids.dim(1);
        return tile_product_us(tuning::expected_experts(a.weight.dim(0), tokens, slots),
                               static_cast<double>(tokens * slots), matrix_weights(a), stream);
      },
      [&](const Args& a) {
        return uses_q8(a.precision, a.weight.dtype) ? grouped_cost<Args, true>(a, stream)
                                                    : grouped_cost<Args, false>(a, stream);
      });
}

template <class Args>
constexpr Kernel<Args> tiled(std::string_view name) {
  return {.name = name,
          .supports = [](const Args& args, const Stream&) { return tile_reason(args.precision, args.weight.dtype); },
          .workspace = tile_workspace<Args>,
          .run = run_tiles<Args>,
          .remark = [](const Args&) { return tile_remark(); },
          .arithmetic = Arithmetic::k16Bit,
          .cost = tile_cost<Args>};
}

constexpr Kernel<MulMmIdArgs> kMm[] = {grouped<MulMmIdArgs, true>("q8"), tiled<MulMmIdArgs>("amx"),
                                       grouped<MulMmIdArgs, false>("exact")};
constexpr Kernel<MulMvIdArgs> kMv[] = {by_slot<MulMvIdArgs, true>("q8"), by_slot<MulMvIdArgs, false>("exact")};
// The first of equal costs runs: one token's experts differ, so that grouping saves no decoding.
constexpr Kernel<MulMatIdArgs> kMat[] = {by_slot<MulMatIdArgs, true>("q8_mv"), grouped<MulMatIdArgs, true>("q8_mm"),
                                         tiled<MulMatIdArgs>("amx"), by_slot<MulMatIdArgs, false>("mv"),
                                         grouped<MulMatIdArgs, false>("mm")};

}  // namespace

KernelList<MulMmIdArgs> mul_mm_id_kernels() { return kMm; }
KernelList<MulMvIdArgs> mul_mv_id_kernels() { return kMv; }
KernelList<MulMatIdArgs> mul_mat_id_kernels() { return kMat; }

}  // namespace thalweg::cpu
