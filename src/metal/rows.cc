// Launches of the operations on rows: norms, rope, sums, unpacking.

#include <algorithm>
#include <cmath>

#include "metal/kernels.h"
#include "metal/layers.h"

namespace thalweg::metal {
namespace {

// A threadgroup for each row of [T,D] or [T,H,D].
Launch norm_launch(std::string_view kernel, const ConstTensor& x) {
  const std::int64_t width = x.dim(x.rank - 1);
  Launch launch;
  launch.kernel = kernel;
  launch.threads = 32 * std::clamp(ceil_div(width, 32 * kRowElements), 1U, std::uint32_t{kMaxRowThreads / 32});
  launch.threadgroup_bytes = kMaxRowThreads / 32 * sizeof(float);
  launch.grid = {static_cast<std::uint32_t>(x.dim(0)), static_cast<std::uint32_t>(x.rank == 3 ? x.dim(1) : 1), 1};
  launch.constant("kWidth", width).constant("kType", x.dtype);
  return launch;
}

}  // namespace

Launch gated_norm_launch(const GatedRmsNormArgs& args, const ConstTensor& state_indices, NormParameters& p) {
  p.eps = args.eps;
  p.x = rows_view(args.x);
  p.other = rows_view(args.z);
  p.y = rows_view(args.y);
  Launch launch = norm_launch("gated_rms_norm", args.x);
  launch.set(p).add(args.x).add(args.z).add(args.weight).add(args.y).add(state_indices);
  launch.constant("kOutType", args.y.dtype).constant("kWeightType", args.weight.dtype);
  launch.constant("kOtherType", args.z.dtype).constant("kIndexed", state_indices.defined());
  return launch;
}

namespace {

void run(const RmsNormArgs& args, Workspace, const Stream& stream) {
  NormParameters p{};
  p.eps = args.eps;
  p.weight_offset = args.weight_plus_one ? 1.0F : 0.0F;
  p.x = rows_view(args.x);
  p.other = rows_view(args.delta);
  p.sum = rows_view(args.sum);
  p.y = rows_view(args.y);
  Launch launch = norm_launch("rms_norm", args.x);
  launch.set(p).add(args.x).add(args.delta).add(args.weight).add(args.sum).add(args.y);
  launch.constant("kOutType", args.y.dtype).constant("kWeightType", args.weight.dtype);
  launch.constant("kHasOther", args.delta.defined()).constant("kOtherType", args.delta.dtype);
  launch.constant("kHasSum", args.sum.defined());
  make_encoder(args.kName, stream)->launch(launch);
}

void run(const GatedRmsNormArgs& args, Workspace, const Stream& stream) {
  NormParameters p{};
  make_encoder(args.kName, stream)->launch(gated_norm_launch(args, {}, p));
}

std::string supports_rope(const RopeArgs& args, const Stream&) {
  return args.rotary_dim <= 2 * kMaxRotaryPairs ? "" : "needs a rotary_dim of at most 1024";
}

void run(const RopeArgs& args, Workspace, const Stream& stream) {
  RopeParameters p{};
  p.heads = static_cast<std::int32_t>(args.x.dim(1));
  p.half_pairs = args.rotary_dim / 2;
  p.scale = args.scale;
  p.eps = args.norm_eps;
  p.weight_offset = args.norm_weight_plus_one ? 1.0F : 0.0F;
  p.x = rows_view(args.x);
  p.y = rows_view(args.y);
  for (int i = 0; i < p.half_pairs && !args.frequencies.defined(); ++i) {
    p.frequency[i] =
        static_cast<float>(std::pow(static_cast<double>(args.theta), -2.0 * static_cast<double>(i) / args.rotary_dim));
  }
  Launch launch;
  launch.kernel = "rope";
  launch.set(p).add(args.x).add(args.positions).add(args.frequencies).add(args.norm_weight).add(args.y);
  launch.constant("kWidth", args.x.dim(2)).constant("kType", args.x.dtype).constant("kOutType", args.y.dtype);
  launch.constant("kHasOther", args.frequencies.defined()).constant("kNorm", args.norm_weight.defined());
  launch.constant("kWeightType", args.norm_weight.dtype);
  launch.threads = 32 * kRopeSimdgroups;
  launch.threadgroup_bytes = static_cast<std::size_t>((args.rotary_dim + 3) / 4 * 4) * sizeof(float);
  launch.grid = {args.x.size() > 0 ? static_cast<std::uint32_t>(args.x.dim(0)) : 0, 1, 1};
  make_encoder(args.kName, stream)->launch(launch);
}

// y = f(a, b), rows [T,D].
void run_pairwise(std::string_view kernel, std::string_view operation, const ConstTensor& a, const ConstTensor& b,
                  const Tensor& y, const Stream& stream) {
  const PairwiseParameters p{a.stride(0), b.stride(0), y.stride(0)};
  Launch launch = columns_launch(kernel, a.dim(1));
  launch.set(p).add(a).add(b).add(y);
  launch.constant("kWidth", a.dim(1)).constant("kType", a.dtype).constant("kOutType", y.dtype);
  launch.grid[1] = static_cast<std::uint32_t>(a.dim(0));
  make_encoder(operation, stream)->launch(launch);
}

void run(const AddArgs& args, Workspace, const Stream& stream) {
  run_pairwise("add_rows", args.kName, args.a, args.b, args.y, stream);
}

void run(const SwigluArgs& args, Workspace, const Stream& stream) {
  run_pairwise("swiglu_rows", args.kName, args.gate, args.up, args.y, stream);
}

// y_i = table[ids_i], or table[i] without ids; then also of several tables [E,R,D].
void run_unpack(std::string_view operation, const ConstTensor& table, const ConstTensor& ids, const Tensor& y,
                const Stream& stream) {
  UnpackParameters p{};
  const int row = y.rank - 2;  // the dimension of rows
  p.rows = static_cast<std::int32_t>(table.dim(table.rank - 2));
  p.row_bytes = bytes_of(table.dtype, table.stride(table.rank - 2));
  p.y_row = y.stride(row);
  if (y.rank == 3) {
    p.table_bytes = bytes_of(table.dtype, table.stride(0));
    p.y_table = y.stride(0);
  }
  Launch launch;
  launch.kernel = "unpack_rows";
  launch.set(p).add(table).add(ids).add(y);
  launch.constant("kWidth", y.dim(y.rank - 1)).constant("kFormat", table.dtype).constant("kOutType", y.dtype);
  launch.constant("kIndexed", ids.defined());
  launch.threads = kMoveThreads;
  launch.grid = {ceil_div(y.dim(y.rank - 1), 8 * kMoveThreads), static_cast<std::uint32_t>(y.dim(row)),
                 y.rank == 3 ? static_cast<std::uint32_t>(y.dim(0)) : 1};
  make_encoder(operation, stream)->launch(launch);
}

void run(const EmbeddingArgs& args, Workspace, const Stream& stream) {
  run_unpack(args.kName, args.table, args.ids, args.y, stream);
}

void run(const DequantizeArgs& args, Workspace, const Stream& stream) {
  run_unpack(args.kName, args.blocks, {}, args.values, stream);
}

template <class Args>
constexpr Kernel<Args> simple(std::string_view name) {
  return {name, always_supported<Args>, no_workspace<Args>, run};
}

constexpr Kernel<RmsNormArgs> kRmsNorm[] = {simple<RmsNormArgs>("rows")};
constexpr Kernel<GatedRmsNormArgs> kGatedRmsNorm[] = {simple<GatedRmsNormArgs>("rows")};
constexpr Kernel<RopeArgs> kRope[] = {{"tokens", supports_rope, no_workspace<RopeArgs>, run}};
constexpr Kernel<AddArgs> kAdd[] = {simple<AddArgs>("columns")};
constexpr Kernel<SwigluArgs> kSwiglu[] = {simple<SwigluArgs>("columns")};
constexpr Kernel<EmbeddingArgs> kEmbedding[] = {simple<EmbeddingArgs>("octets")};
constexpr Kernel<DequantizeArgs> kDequantize[] = {simple<DequantizeArgs>("octets")};

}  // namespace

void add_row_kernels(Backend& backend) {
  std::get<KernelList<RmsNormArgs>>(backend.kernels) = kRmsNorm;
  std::get<KernelList<GatedRmsNormArgs>>(backend.kernels) = kGatedRmsNorm;
  std::get<KernelList<RopeArgs>>(backend.kernels) = kRope;
  std::get<KernelList<AddArgs>>(backend.kernels) = kAdd;
  std::get<KernelList<SwigluArgs>>(backend.kernels) = kSwiglu;
  std::get<KernelList<EmbeddingArgs>>(backend.kernels) = kEmbedding;
  std::get<KernelList<DequantizeArgs>>(backend.kernels) = kDequantize;
}

}  // namespace thalweg::metal
