#pragma once

// moe_ffn's `matvec`, for few tokens, in three launches: the router's logits; gate, up and SwiGLU; down and the sum
// over slots. The shared expert is one more slot of every token, after those that the router chooses. Kernels are
// instantiated by format. A shared expert of another format has launches of its own, unless it is kSharedType or
// kOtherSharedType.

#include <cstdint>
#include <string>

#include "cuda/experts/expert_range.h"
#include "cuda/experts/fixed_blocks.h"
#include "cuda/experts/row_products.h"
#include "cuda/launch.h"
#include "thalweg/moe.h"

namespace thalweg::cu {

constexpr int kMostMatvecExperts = 1024;  // logits that fit into a warp's registers
constexpr int kMostMatvecSlots = 32;      // one lane each

// T tokens, D hidden, E experts, S slots, I inner, J inner of the shared expert (0 without one); D, I and J are
// multiples of 32.
struct MoeMatvecSizes {
  int tokens;
  int hidden;
  int experts;
  int slots;
  int inner;
  int shared_inner;
  ExpertRange here;  // of the experts

  __host__ __device__ int logits() const { return experts + (shared_inner > 0 ? 1 : 0); }
  __host__ __device__ int all_slots() const { return slots + (shared_inner > 0 ? 1 : 0); }
  // Fixed-point blocks of a token between up and down, of all of its slots.
  __host__ __device__ int inner_blocks() const { return (slots * inner + shared_inner) / 32; }
};

struct MoeRouter {
  MoeMatvecSizes sizes;
  Elements x, router, shared_router;
  float* logits;
  uint4* x_blocks;
};

struct MoeMatvec {
  MoeMatvecSizes sizes;
  bool renormalize;
  bool fetch_down;  // prefetch the rows of down: they fit into the L2 cache
  Elements y;
  WeightRows gate, up, down;
  WeightRows shared_gate, shared_up, shared_down;
  // In the workspace:
  const float* logits;     // [T,E], or [T,E+1] with the shared expert's
  const uint4* x_blocks;   // [T] rows of D/32 fixed blocks
  uint4* activated;        // [T] rows of fixed blocks: I/32 of each slot, then J/32
  std::int32_t* ids;       // [T,S], among the experts that are here
  float* weights;          // [T,S], or [T,S+1] with the shared expert's
  float* shared_products;  // [T,D], if the shared expert has launches of its own
};

// The formats that most files have for the shared expert, whatever that of the experts.
constexpr DType kSharedType = DType::kQ8_0;
constexpr DType kOtherSharedType = DType::kQ6_K;

constexpr int kGateUpWarps = 8;
constexpr int kGateUpThreads = kGateUpWarps * kWarpSize;
struct GateUpShape {
  int outputs;  // per block, a multiple of 32
  int stage_bytes;
  int chunk, shared_chunk;  // rows
  int shared_blocks;
  DType shared_type;
};

constexpr int kMostDownOutputs = 64;
constexpr int kMostDownWarps = 9;  // per block: eight slots and the shared expert
// The most bytes of a ring stage with which the rings of moe_down's warps fit.
inline int most_stage_bytes(const DeviceProperties& device) {
  constexpr int kReserved = 1024;
  constexpr int kProducts = (kMostMatvecSlots + 1) * kMostDownOutputs * 4;
  return (device.shared_bytes - kReserved - kProducts) / (kMostDownWarps * kRingStages) - 32;
}
struct DownShape {
  int outputs;  // per block
  int stage_bytes;
  int chunk, shared_chunk;  // rows
  int first_slot, last_slot;
  bool only_shared;  // writes to shared_products
  bool add_shared;   // adds shared_products
  DType shared_type;
};

struct MoeMatvecKernels {
  void (*gate_up)(MoeMatvec, GateUpShape);
  void (*down)(MoeMatvec, DownShape);
};
template <DType kType>
MoeMatvecKernels moe_matvec_kernels();

MoeMatvecSizes moe_matvec_sizes(const MoeFfnArgs& args);
MoeRouter router_inputs(const MoeFfnArgs& args, const MoeMatvecSizes& sizes, float* logits, uint4* x_blocks);
// Empty, or which arguments neither `matvec` nor `staged` takes.
std::string few_tokens_reason(const MoeFfnArgs& args);

void launch_moe_router(const MoeRouter& p, const DeviceProperties& device, cudaStream_t stream);
void launch_moe_gate_up(const MoeMatvec& p, const DeviceProperties& device, cudaStream_t stream);
void launch_moe_down(const MoeMatvec& p, const DeviceProperties& device, cudaStream_t stream);

}  // namespace thalweg::cu

// Instantiates a format; for files that include moe_gate_up_kernel.h and moe_down_kernel.h.
#define THALWEG_MOE_MATVEC(type)                              \
  template <>                                                 \
  MoeMatvecKernels moe_matvec_kernels<DType::type>() {        \
    return {moe_gate_up<DType::type>, moe_down<DType::type>}; \
  }
