// The stages of the chunk form.

#include "metal/gated_delta.h"
#include "metal/kernels.h"

namespace thalweg::metal {
namespace {

void run(const ChunkLocalCumsumArgs& args, Workspace, const Stream& stream) {
  const std::int64_t hv = args.g.dim(2);
  CumsumParameters p{};
  p.sequences = sequences_of(args.cu_seqlens, args.g);
  p.hv = static_cast<std::int32_t>(hv);
  p.g = view_of(args.g);
  p.sums = view_of(args.g_cumsum);
  Launch launch;
  launch.kernel = "chunk_local_cumsum";
  launch.set(p).add(args.g).add(args.cu_seqlens).add(args.g_cumsum);
  launch.constant("kChunk", args.chunk_size).constant("kRagged", args.cu_seqlens.defined());
  launch.grid = {whole(hv, 32), most_chunks(args.cu_seqlens, args.g, args.chunk_size), 1};
  make_encoder(args.kName, stream)->launch(launch);
}

void run(const L2normArgs& args, Workspace, const Stream& stream) {
  L2normParameters p{};
  p.tokens = static_cast<std::int32_t>(args.x.dim(1));
  p.heads = static_cast<std::int32_t>(args.x.dim(2));
  p.rows = args.x.dim(0) * args.x.dim(1) * args.x.dim(2);
  p.eps = args.eps;
  p.x = view_of(args.x);
  p.y = view_of(args.y);
  Launch launch;
  launch.kernel = "l2norm";
  launch.set(p).add(args.x).add(args.y);
  launch.constant("kType", args.x.dtype).constant("kHeadK", args.x.dim(3));
  launch.grid = {whole(p.rows, kSimdgroupsOfKernel), 1, 1};
  launch.threads = kThreadsOfKernel;
  make_encoder(args.kName, stream)->launch(launch);
}

template <class Args>
constexpr Kernel<Args> kernel_named(std::string_view name) {
  return {name, always_supported<Args>, no_workspace<Args>, [](const Args& args, Workspace workspace, const Stream& stream) {
            run(args, workspace, stream);
          }};
}

constexpr Kernel<ChunkLocalCumsumArgs> kCumsum[] = {kernel_named<ChunkLocalCumsumArgs>("heads")};
constexpr Kernel<L2normArgs> kL2norm[] = {kernel_named<L2normArgs>("simdgroup_rows")};

}  // namespace

void add_chunk_stage_kernels(Backend& backend) {
  std::get<KernelList<ChunkLocalCumsumArgs>>(backend.kernels) = kCumsum;
  std::get<KernelList<L2normArgs>>(backend.kernels) = kL2norm;
}

}  // namespace thalweg::metal
