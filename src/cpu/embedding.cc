#include <cstring>

#include "core/threads.h"
#include "cpu/nn.h"
#include "cpu/scratch.h"
#include "cpu/tuning.h"
#include "cpu/vector.h"
#include "quant/unpack.h"

namespace thalweg::cpu {
namespace {

std::size_t embedding_workspace(const EmbeddingArgs& args, const Stream& stream) {
  return worker_bytes(arena_floats(args.table.dim(1)), stream);
}

void run_embedding(const EmbeddingArgs& args, Workspace workspace, const Stream& stream) {
  const std::int64_t width = args.table.dim(1);
  const DType from = args.table.dtype;
  const DType to = args.y.dtype;
  const auto* ids = static_cast<const std::int32_t*>(args.ids.data);
  if (args.y.size() == 0) return;
  parallel_for(stream, args.ids.dim(0), static_cast<double>(width) * tuning::kUnpackNs,
               [&](std::int64_t t, int worker) {
                 const void* row = args.table.row(ids[t]);
                 void* y = args.y.row(t);
                 if (from == to) {
                   std::memcpy(y, row, static_cast<std::size_t>(bytes_of(to, width)));
                 } else if (to == DType::kF32) {
                   unpack(from, row, width, static_cast<float*>(y));
                 } else {
                   Arena scratch = worker_arena(workspace, arena_floats(width), worker);
                   float* values = scratch.take<float>(width);
                   unpack(from, row, width, values);
                   vector_ops().store(to, values, width, y);
                 }
               });
}

constexpr Kernel<EmbeddingArgs> kEmbedding[] = {
    {"rows", always_supported<EmbeddingArgs>, embedding_workspace, run_embedding}};

}  // namespace

KernelList<EmbeddingArgs> embedding_kernels() { return kEmbedding; }

}  // namespace thalweg::cpu
