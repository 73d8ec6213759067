// mul_mat_id, mul_mm_id, mul_mv_id and linear: which kernels there are, and which one runs.

#include <string>

#include "cuda/expert_lists.h"
#include "cuda/expert_matmul.h"
#include "cuda/expert_tiles.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

// ---- one product of matrix and vector per slot

template <class Args>
std::string supports_matvec(const Args& args, const Stream&) {
  return matvec_supports(args.weight, args.expert_ids.size());
}
template <class Args>
void run_slots(const Args& args, Workspace, const Stream& stream) {
  const CurrentDevice current(stream, args.kName);
  run_matvec(expert_matmul(args), args.expert_ids.size(), args.weight.dtype, stream, args.kName);
}

// ---- tiles of many rows

template <class Args>
std::string supports_tiles(const Args& args, const Stream& stream) {
  return expert_tiles_supports(args, stream);
}
template <class Args>
std::size_t tiles_workspace(const Args& args, const Stream&) {
  return expert_tiles_workspace(args);
}
template <class Args>
void run_tiles(const Args& args, Workspace workspace, const Stream& stream) {
  run_expert_tiles(args, workspace, stream, args.kName);
}

constexpr Kernel<MulMvIdArgs> kMv[] = {
    {"matvec", supports_matvec<MulMvIdArgs>, no_workspace<MulMvIdArgs>, run_slots<MulMvIdArgs>}};
constexpr Kernel<MulMmIdArgs> kMm[] = {
    {"wgmma", supports_tiles<MulMmIdArgs>, tiles_workspace<MulMmIdArgs>, run_tiles<MulMmIdArgs>, nullptr,
     Arithmetic::k16Bit},
    {"matvec", supports_matvec<MulMmIdArgs>, no_workspace<MulMmIdArgs>, run_slots<MulMmIdArgs>}};
constexpr Kernel<MulMatIdArgs> kMat[] = {
    {"wgmma", supports_tiles<MulMatIdArgs>, tiles_workspace<MulMatIdArgs>, run_tiles<MulMatIdArgs>, nullptr,
     Arithmetic::k16Bit},
    {"matvec", supports_matvec<MulMatIdArgs>, no_workspace<MulMatIdArgs>, run_slots<MulMatIdArgs>}};

std::string supports_linear_matvec(const LinearArgs& args, const Stream&) {
  return matvec_supports(args.weight, args.x.dim(0));
}
void run_linear_matvec(const LinearArgs& args, Workspace, const Stream& stream) {
  const CurrentDevice current(stream, args.kName);
  run_matvec(expert_matmul(args), args.x.dim(0), args.weight.dtype, stream, args.kName);
}
constexpr Kernel<LinearArgs> kLinear[] = {
    {"wgmma", linear_tiles_supports, linear_tiles_workspace, run_linear_tiles, nullptr, Arithmetic::k16Bit},
    {"matvec", supports_linear_matvec, no_workspace<LinearArgs>, run_linear_matvec}};

}  // namespace

KernelList<MulMmIdArgs> mul_mm_id_kernels() { return kMm; }
KernelList<MulMvIdArgs> mul_mv_id_kernels() { return kMv; }
KernelList<MulMatIdArgs> mul_mat_id_kernels() { return kMat; }
KernelList<LinearArgs> linear_kernels() { return kLinear; }

}  // namespace thalweg::cu
