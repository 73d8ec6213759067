#include <cstring>

#include "core/cache_places.h"
#include "core/sequences.h"
#include "core/threads.h"
#include "cpu/nn.h"
#include "cpu/scratch.h"
#include "cpu/tuning.h"
#include "cpu/vector.h"
#include "quant/pack.h"

namespace thalweg::cpu {
namespace {

std::size_t store_workspace(const StoreKvArgs& args, const Stream& stream) {
  return worker_bytes(arena_floats(args.k.dim(2)), stream);
}

void store_row(DType dtype, const float* values, std::int64_t width, void* to) {
  if (is_block_format(dtype)) return pack(dtype, values, width, to);
  vector_ops().store(dtype, values, width, to);
}

void run_store(const StoreKvArgs& args, Workspace workspace, const Stream& stream) {
  const std::int64_t width = args.k.dim(2);
  const Sequences sequences(args.cu_seqlens, 1, args.k.dim(0));
  const CachePlaces places(args.slots, args.pages, args.k_cache);
  const auto* lengths = static_cast<const std::int32_t*>(args.lengths.data);
  const auto store = [&](const ConstTensor& rows, const Tensor& cache, std::int64_t t, const CachePlaces::Place& place,
                         float* values) {
    for (std::int64_t h = 0; h < rows.dim(1) && width > 0; ++h) {
      void* to = cache.row(place.slot, place.row, h);
      if (rows.dtype == cache.dtype) {
        std::memcpy(to, rows.row(t, h), static_cast<std::size_t>(bytes_of(cache.dtype, width)));
      } else if (rows.dtype == DType::kF32) {
        store_row(cache.dtype, static_cast<const float*>(rows.row(t, h)), width, to);
      } else {
        vector_ops().load(rows.dtype, rows.row(t, h), width, values);
        store_row(cache.dtype, values, width, to);
      }
    }
  };
  const double element_ns = is_block_format(args.k_cache.dtype) ? tuning::kPackNs : tuning::kElementNs;
  const double task_ns = static_cast<double>(2 * args.k.dim(1) * width) * element_ns;
  for (std::int64_t n = 0; n < sequences.count(); ++n) {
    if (places.absent(n)) continue;
    const std::int64_t before = lengths[n] - sequences.length(n);
    parallel_for(stream, sequences.length(n), task_ns, [&](std::int64_t i, int worker) {
      float* values = worker_arena(workspace, arena_floats(width), worker).take<float>(width);
      const CachePlaces::Place place = places.place(n, before + i);
      store(args.k, args.k_cache, sequences.begin(n) + i, place, values);
      store(args.v, args.v_cache, sequences.begin(n) + i, place, values);
    });
  }
}

constexpr Kernel<StoreKvArgs> kStore[] = {{"rows", always_supported<StoreKvArgs>, store_workspace, run_store}};

}  // namespace

KernelList<StoreKvArgs> store_kv_kernels() { return kStore; }

}  // namespace thalweg::cpu
