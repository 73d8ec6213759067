// mul_mat_id, mul_mm_id, mul_mv_id and linear: which kernels there are, and which one runs.

#include <algorithm>
#include <string>
#include <type_traits>

#include "cuda/experts/expert_lists.h"
#include "cuda/experts/expert_matmul.h"
#include "cuda/experts/expert_tiles.h"
#include "cuda/experts/linear_cublas.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

// Pairs (rows, of linear) up to which no work is saved by bringing those of an expert together: there are hardly two.
constexpr std::int64_t kMatvecPairs = 64;
constexpr std::int64_t kMatvecRows = 8;

template <class Args>
std::int64_t pairs_of(const Args& args) {
  return args.expert_ids.size();
}
std::int64_t pairs_of(const LinearArgs& args) { return args.x.dim(0); }

// ---- one product of matrix and vector per slot

template <class Args>
std::string supports_matvec(const Args& args, const Stream&) {
  return matvec_supports(args.weight, pairs_of(args));
}
template <class Args>
std::string yields_many(const Args& args, const Stream&) {
  const std::int64_t most = std::is_same_v<Args, LinearArgs> ? kMatvecRows : kMatvecPairs;
  if (pairs_of(args) <= most) return {};
  return std::to_string(pairs_of(args)) + " rows, more than " + std::to_string(most) +
         ": those of an expert share its weights";
}
template <class Args>
void run_slots(const Args& args, Workspace, const Stream& stream) {
  const CurrentDevice current(stream, args.kName);
  run_matvec(expert_matmul(args), args.weight.dtype, stream, args.kName);
}

// ---- few rows of each expert

template <class Args>
std::string supports_stream(const Args& args, const Stream&) {
  return stream_supports(args.weight, pairs_of(args));
}
template <class Args>
std::size_t workspace_stream(const Args& args, const Stream&) {
  return stream_workspace(args.x, args.weight, pairs_of(args));
}
template <class Args>
void run_streaming(const Args& args, Workspace workspace, const Stream& stream) {
  const CurrentDevice current(stream, args.kName);
  run_stream(expert_matmul(args), args.x, args.weight, workspace, stream, args.kName);
}
template <class Args>
std::string remark_stream(const Args& args) {
  return stream_rounds_weights(args.weight, pairs_of(args)) ? "rounds activations and weights to bf16"
                                                            : "rounds activations to f16, each row scaled";
}
template <class Args>
std::string remark_tiles(const Args& args) {
  return tiles_in_f16(args.weight.dtype) ? "rounds activations and weights to f16, each row of activations scaled"
                                         : "rounds activations and weights to bf16";
}

// ---- tiles of many rows

template <class Args>
constexpr bool kIsLinear = std::is_same_v<Args, LinearArgs>;

template <class Args>
std::string supports_tiles(const Args& args, const Stream& stream) {
  if constexpr (kIsLinear<Args>)
    return linear_tiles_supports(args, stream);
  else
    return expert_tiles_supports(args, stream);
}
template <class Args>
std::size_t workspace_tiles(const Args& args, const Stream&) {
  if constexpr (kIsLinear<Args>)
    return linear_tiles_workspace(args);
  else
    return expert_tiles_workspace(args);
}
template <class Args>
void run_tiles(const Args& args, Workspace workspace, const Stream& stream) {
  if constexpr (kIsLinear<Args>)
    run_linear_tiles(args, workspace, stream);
  else
    run_expert_tiles(args, workspace, stream, args.kName);
}

// Where an expert has few rows, most of a tile would be empty. Plain weights need no unpacking, and one matrix has few
// tiles: for these `stream` is better for longer. Q6_K costs it most to decode.
constexpr std::int64_t kTiledRows = 10;  // per expert, on average
constexpr std::int64_t kTiledRowsQ6K = 4;
constexpr std::int64_t kTiledPlainRows = 24;

template <class Args>
std::string yields_few(const Args& args, const Stream&) {
  std::int64_t least = kTiledPlainRows;
  if constexpr (!kIsLinear<Args>) {
    if (args.weight.dtype == DType::kQ6_K) {
      least = kTiledRowsQ6K;
    } else if (is_block_format(args.weight.dtype)) {
      least = kTiledRows;
    }
    least = std::max(least * args.weight.dim(0), kMatvecPairs + 1);
  }
  if (pairs_of(args) >= least) return {};
  return std::to_string(pairs_of(args)) + " rows, fewer than " + std::to_string(least) +
         ": most of a tile would be empty";
}

template <class Args>
constexpr Kernel<Args> kTiles{"wgmma",         supports_tiles<Args>, workspace_tiles<Args>,
                              run_tiles<Args>, remark_tiles<Args>,   Arithmetic::k16Bit,
                              yields_few<Args>};

template <class Args>
std::string remark_matvec(const Args& args) {
  return is_block_format(args.weight.dtype) ? "rounds activations to 15 bits of the largest of 32" : "";
}
template <class Args>
constexpr Kernel<Args> kMatvec{"matvec",        supports_matvec<Args>, no_workspace<Args>,
                               run_slots<Args>, remark_matvec<Args>,   Arithmetic::k16Bit};
// Left to others where rows share an expert.
template <class Args>
constexpr Kernel<Args> kFewRows{"matvec",         supports_matvec<Args>, no_workspace<Args>,
                                run_slots<Args>,  remark_matvec<Args>,   Arithmetic::k16Bit,
                                yields_many<Args>};
template <class Args>
constexpr Kernel<Args> kStream{
    "stream",          supports_stream<Args>, workspace_stream<Args>, run_streaming<Args>, remark_stream<Args>,
    Arithmetic::k16Bit};

constexpr Kernel<MulMvIdArgs> kMv[] = {kMatvec<MulMvIdArgs>};
constexpr Kernel<MulMmIdArgs> kMm[] = {kTiles<MulMmIdArgs>, kStream<MulMmIdArgs>, kMatvec<MulMmIdArgs>};

// ---- dense bf16

std::size_t workspace_cublas(const LinearArgs& args, const Stream&) { return linear_cublas_workspace(args); }
std::string remark_cublas(const LinearArgs& args) {
  return args.x.dtype == DType::kBF16 ? "" : "rounds activations to bf16";
}

constexpr Kernel<LinearArgs> kCublas{"cublas",          linear_cublas_supports, workspace_cublas,
                                     run_linear_cublas, remark_cublas,          Arithmetic::k16Bit};

constexpr Kernel<MulMatIdArgs> kMat[] = {kTiles<MulMatIdArgs>, kFewRows<MulMatIdArgs>, kStream<MulMatIdArgs>};
constexpr Kernel<LinearArgs> kLinear[] = {kFewRows<LinearArgs>, kCublas, kTiles<LinearArgs>, kStream<LinearArgs>};

}  // namespace

KernelList<MulMmIdArgs> mul_mm_id_kernels() { return kMm; }
KernelList<MulMvIdArgs> mul_mv_id_kernels() { return kMv; }
KernelList<MulMatIdArgs> mul_mat_id_kernels() { return kMat; }
KernelList<LinearArgs> linear_kernels() { return kLinear; }

}  // namespace thalweg::cu
