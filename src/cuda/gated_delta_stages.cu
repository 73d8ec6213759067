#include "cuda/kernels.h"

namespace thalweg::cu {

KernelList<ChunkLocalCumsumArgs> chunk_local_cumsum_kernels() { return {}; }
KernelList<L2normArgs> l2norm_kernels() { return {}; }
KernelList<ChunkScaledDotKktArgs> chunk_scaled_dot_kkt_kernels() { return {}; }
KernelList<SolveTrilArgs> solve_tril_kernels() { return {}; }
KernelList<RecomputeWUArgs> recompute_w_u_kernels() { return {}; }
KernelList<ChunkStateArgs> chunk_state_kernels() { return {}; }
KernelList<ChunkOutputArgs> chunk_output_kernels() { return {}; }

}  // namespace thalweg::cu
