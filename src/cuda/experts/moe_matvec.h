#pragma once

// moe_ffn for few tokens in three launches: the router's logits; gate, up and SwiGLU; down and the sum over experts.
// The shared expert is one more slot of every token, behind those that the router chooses. A launch reads only what the
// ones before it wrote, and weights. Kernels are instantiated by format; a shared expert that is neither of its
// experts' format nor of kSharedType has launches of its own.

#include <cstdint>
#include <string_view>

#include "cuda/experts/fixed_blocks.h"
#include "cuda/experts/row_products.h"
#include "cuda/launch.h"

namespace thalweg::cu {

constexpr int kMostMatvecExperts = 1024;  // whose logits fit into a warp's registers
constexpr int kMostMatvecSlots = 32;      // a lane for each

// Sizes: T tokens, D hidden, E experts, S slots, I inner, J inner of the shared expert (0: there is none); D, I and J
// are multiples of 32.
struct MoeMatvecSizes {
  int tokens;
  int hidden;
  int experts;
  int slots;
  int inner;
  int shared_inner;

  __host__ __device__ int logits() const { return experts + (shared_inner > 0 ? 1 : 0); }
  __host__ __device__ int all_slots() const { return slots + (shared_inner > 0 ? 1 : 0); }
  // Units of a token's activations between up and down, of all of its slots.
  __host__ __device__ int inner_blocks() const { return (slots * inner + shared_inner) / 32; }
};

struct MoeMatvec {
  MoeMatvecSizes sizes;
  bool renormalize;
  bool fetch_down;  // the rows of down that will be wanted fit into the L2 cache beside all else
  Elements x, router, shared_router, y;
  WeightRows gate, up, down;
  WeightRows shared_gate, shared_up, shared_down;
  // In the workspace:
  float* logits;           // [T,E], or [T,E+1] with the shared expert's
  uint4* x_blocks;         // [T] rows of D/32 k_blocks
  uint4* activated;        // [T] rows of k_blocks: I/32 of each slot, then J/32
  std::int32_t* ids;       // [T,S]
  float* weights;          // [T,S], or [T,S+1] with the shared expert's
  float* shared_products;  // [T,D], of a shared expert with launches of its own
};

// What most files have of the shared expert beside experts of any format.
constexpr DType kSharedType = DType::kQ8_0;

constexpr int kGateUpWarps = 8;
constexpr int kGateUpThreads = kGateUpWarps * kWarpSize;
struct GateUpShape {
  int outputs;  // of a block: a multiple of 32
  int stage_bytes;
  int chunk, shared_chunk;  // rows
  int shared_blocks;
  DType shared_type;
};

constexpr int kMostDownOutputs = 64;
constexpr int kMostDownWarps = 9;  // of a block: one for each of eight slots and the shared expert
// Of the raw rows that a warp takes at a time, so that the rings of moe_down's warps fit.
inline int most_stage_bytes(const DeviceProperties& device) {
  constexpr int kReserved = 1024;
  constexpr int kProducts = (kMostMatvecSlots + 1) * kMostDownOutputs * 4;
  return (device.shared_bytes - kReserved - kProducts) / (kMostDownWarps * kRingStages) - 32;
}
struct DownShape {
  int outputs;  // of a block
  int stage_bytes;
  int chunk, shared_chunk;  // rows
  int first_slot, last_slot;
  bool only_shared;  // its products go to shared_products
  bool add_shared;   // from there
  DType shared_type;
};

struct MoeMatvecKernels {
  void (*gate_up)(MoeMatvec, GateUpShape);
  void (*down)(MoeMatvec, DownShape);
};
template <DType kType>
MoeMatvecKernels moe_matvec_kernels();

void launch_moe_router(const MoeMatvec& p, const DeviceProperties& device, cudaStream_t stream);
void launch_moe_gate_up(const MoeMatvec& p, const DeviceProperties& device, cudaStream_t stream);
void launch_moe_down(const MoeMatvec& p, const DeviceProperties& device, cudaStream_t stream);

}  // namespace thalweg::cu

// For a file that includes moe_gate_up_kernel.h and moe_down_kernel.h.
#define THALWEG_MOE_MATVEC(type)                              \
  template <>                                                 \
  MoeMatvecKernels moe_matvec_kernels<DType::type>() {        \
    return {moe_gate_up<DType::type>, moe_down<DType::type>}; \
  }
