// mul_mat_id, mul_mm_id, mul_mv_id and linear: which kernels there are, and which one runs.

#include <string>

#include "cuda/expert_lists.h"
#include "cuda/expert_matmul.h"
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

constexpr Kernel<MulMvIdArgs> kMv[] = {
    {"matvec", supports_matvec<MulMvIdArgs>, no_workspace<MulMvIdArgs>, run_slots<MulMvIdArgs>}};
constexpr Kernel<MulMmIdArgs> kMm[] = {
    {"matvec", supports_matvec<MulMmIdArgs>, no_workspace<MulMmIdArgs>, run_slots<MulMmIdArgs>}};
constexpr Kernel<MulMatIdArgs> kMat[] = {
    {"matvec", supports_matvec<MulMatIdArgs>, no_workspace<MulMatIdArgs>, run_slots<MulMatIdArgs>}};

std::string supports_linear_matvec(const LinearArgs& args, const Stream&) {
  return matvec_supports(args.weight, args.x.dim(0));
}
void run_linear_matvec(const LinearArgs& args, Workspace, const Stream& stream) {
  const CurrentDevice current(stream, args.kName);
  run_matvec(expert_matmul(args), args.x.dim(0), args.weight.dtype, stream, args.kName);
}
constexpr Kernel<LinearArgs> kLinear[] = {
    {"matvec", supports_linear_matvec, no_workspace<LinearArgs>, run_linear_matvec}};

}  // namespace

KernelList<MulMmIdArgs> mul_mm_id_kernels() { return kMm; }
KernelList<MulMvIdArgs> mul_mv_id_kernels() { return kMv; }
KernelList<MulMatIdArgs> mul_mat_id_kernels() { return kMat; }
KernelList<LinearArgs> linear_kernels() { return kLinear; }

}  // namespace thalweg::cu
