// The CUDA backend of a build with it: the list of kernels, and whether this machine has a GPU that runs the code.

#include <cuda_runtime.h>

#include <charconv>
#include <string>
#include <string_view>

#include "cuda/backend.h"
#include "cuda/device_functions.h"
#include "cuda/kernels.h"

namespace thalweg::cu {
namespace {

// The compute capabilities that CMake compiles for, as in "80 90a".
constexpr std::string_view kArchitectures = THALWEG_CUDA_ARCHITECTURES;

// The instructions of 80 are embedded as PTX too, which any later GPU can run; those of 90a run on 9.0 alone.
bool has_code_for(int major, int minor) {
  std::string_view rest = kArchitectures;
  while (!rest.empty()) {
    const std::string_view entry = rest.substr(0, rest.find(' '));
    rest.remove_prefix(entry.size() < rest.size() ? entry.size() + 1 : entry.size());
    int number = 0;
    std::from_chars(entry.data(), entry.data() + entry.size(), number);
    if (entry.ends_with('a') ? number == 10 * major + minor : number <= 10 * major + minor) return true;
  }
  return false;
}

std::string describe(cudaError_t error) {
  return std::string("the CUDA runtime reports: ") + cudaGetErrorString(error);
}

// Empty if a device can run this build's code, else why none can. Creates no context on any device.
std::string why_unavailable() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) == cudaSuccess && driver == 0) return "no CUDA driver";
  int devices = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&devices); error != cudaSuccess) {
    cudaGetLastError();  // the error would otherwise stay for the caller's next check
    return error == cudaErrorNoDevice ? "no CUDA device" : describe(error);
  }
  std::string found;
  for (int device = 0; device < devices; ++device) {
    int major = 0;
    int minor = 0;
    cudaError_t error = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
    if (error == cudaSuccess) error = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (error != cudaSuccess) {
      cudaGetLastError();
      return describe(error);
    }
    if (has_code_for(major, minor)) return {};
    found += (found.empty() ? "" : ", ") + std::to_string(major) + "." + std::to_string(minor);
  }
  if (found.empty()) return "no CUDA device";
  return "no CUDA device that this build has code for: compiled for " + std::string(kArchitectures) +
         ", found compute capability " + found;
}

}  // namespace

const Backend& backend() {
  static const Backend instance = [] {
    Backend result{DeviceType::kCuda, why_unavailable(), {}, nullptr, nullptr, &device_functions()};
    std::get<KernelList<ChunkLocalCumsumArgs>>(result.kernels) = chunk_local_cumsum_kernels();
    std::get<KernelList<L2normArgs>>(result.kernels) = l2norm_kernels();
    std::get<KernelList<ChunkScaledDotKktArgs>>(result.kernels) = chunk_scaled_dot_kkt_kernels();
    std::get<KernelList<SolveTrilArgs>>(result.kernels) = solve_tril_kernels();
    std::get<KernelList<RecomputeWUArgs>>(result.kernels) = recompute_w_u_kernels();
    std::get<KernelList<ChunkStateArgs>>(result.kernels) = chunk_state_kernels();
    std::get<KernelList<ChunkOutputArgs>>(result.kernels) = chunk_output_kernels();
    std::get<KernelList<ChunkGatedDeltaRuleArgs>>(result.kernels) = chunk_gated_delta_rule_kernels();
    std::get<KernelList<RecurrentGatedDeltaRuleArgs>>(result.kernels) = recurrent_gated_delta_rule_kernels();
    std::get<KernelList<GatedDeltaPrepStepArgs>>(result.kernels) = gated_delta_prep_step_kernels();
    std::get<KernelList<CausalConv1dArgs>>(result.kernels) = causal_conv1d_kernels();
    std::get<KernelList<CausalConv1dUpdateArgs>>(result.kernels) = causal_conv1d_update_kernels();
    std::get<KernelList<RmsNormArgs>>(result.kernels) = rms_norm_kernels();
    std::get<KernelList<GatedRmsNormArgs>>(result.kernels) = gated_rms_norm_kernels();
    std::get<KernelList<RopeArgs>>(result.kernels) = rope_kernels();
    std::get<KernelList<SplitQkvzArgs>>(result.kernels) = split_qkvz_kernels();
    std::get<KernelList<EmbeddingArgs>>(result.kernels) = embedding_kernels();
    std::get<KernelList<AddArgs>>(result.kernels) = add_kernels();
    std::get<KernelList<AttentionArgs>>(result.kernels) = attention_kernels();
    std::get<KernelList<StoreKvArgs>>(result.kernels) = store_kv_kernels();
    std::get<KernelList<ExpertRowsArgs>>(result.kernels) = expert_rows_kernels();
    std::get<KernelList<MulMmIdArgs>>(result.kernels) = mul_mm_id_kernels();
    std::get<KernelList<MulMvIdArgs>>(result.kernels) = mul_mv_id_kernels();
    std::get<KernelList<MulMatIdArgs>>(result.kernels) = mul_mat_id_kernels();
    std::get<KernelList<LinearArgs>>(result.kernels) = linear_kernels();
    std::get<KernelList<ProjectionsArgs>>(result.kernels) = projections_kernels();
    std::get<KernelList<RouteTopKArgs>>(result.kernels) = route_top_k_kernels();
    std::get<KernelList<SwigluArgs>>(result.kernels) = swiglu_kernels();
    std::get<KernelList<MoeFfnArgs>>(result.kernels) = moe_ffn_kernels();
    std::get<KernelList<SampleTokensArgs>>(result.kernels) = sample_tokens_kernels();
    std::get<KernelList<LogprobsArgs>>(result.kernels) = logprobs_kernels();
    std::get<KernelList<AdvanceArgs>>(result.kernels) = advance_kernels();
    return result;
  }();
  return instance;
}

}  // namespace thalweg::cu
