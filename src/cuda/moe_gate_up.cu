// The second launch of moe_ffn for few tokens: the choice of the experts, gate and up of all of them and of the shared
// expert, SwiGLU, and its results in fixed point for down.

#include "cuda/device/choose_experts.h"
#include "cuda/device/launch_order.h"
#include "cuda/moe_matvec.h"
#include "thalweg/moe.h"

namespace thalweg::cu {
namespace {

constexpr int kWarps = 8;
constexpr int kThreads = kWarps * kWarpSize;
constexpr int kTileRows = 32;  // of gate, and of up, of a block: a unit of activations for down
constexpr int kWarpRows = kTileRows / kWarps;

struct GateUp {
  MoeMatvecSizes sizes;
  bool renormalize, fetch_down;
  WeightRows gate, up, shared_gate, shared_up, down;
  const float* logits;
  const FixedUnit* x;
  FixedUnit* activated;
  std::int32_t* ids;
  float* weights;
};

// The expert of a token's slot, by a whole warp; if `all` are wanted, writes their ids and weights.
__device__ int choose(const GateUp& p, int token, int slot, bool all) {
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const float* logits = p.logits + token * p.sizes.logits();
  const int slots = all ? p.sizes.slots : slot + 1;
  float sum = 0.0F;
  float* const total = all && !p.renormalize ? &sum : nullptr;
  const ChosenExpert chosen = p.sizes.experts <= 256 ? choose_experts<8>(logits, p.sizes.experts, slots, total)
                                                     : choose_experts<32>(logits, p.sizes.experts, slots, total);
  if (all) {
    const float largest = __shfl_sync(0xFFFFFFFFU, chosen.logit, 0);
    const float own = lane < slots ? expf(chosen.logit - largest) : 0.0F;
    if (p.renormalize) sum = warp_sum(own);
    float* const weights = p.weights + token * p.sizes.all_slots();
    if (lane < slots) {
      p.ids[token * slots + lane] = chosen.id;
      weights[lane] = own / sum;
    }
    if (lane == 0 && p.sizes.shared_inner > 0) weights[slots] = 1.0F / (1.0F + expf(-logits[p.sizes.experts]));
  }
  return __shfl_sync(0xFFFFFFFFU, chosen.id, slot);
}

// A block has 32 outputs of one slot of a token. The shared expert's come first: they need not know who was chosen.
__global__ void __launch_bounds__(kThreads, 2) moe_gate_up(const __grid_constant__ GateUp p) {
  __shared__ float results[2][kTileRows];
  __shared__ int chosen;
  const MoeMatvecSizes& sizes = p.sizes;
  const int thread = static_cast<int>(threadIdx.x);
  const int warp = thread / kWarpSize;
  const int block = static_cast<int>(blockIdx.x);
  const int shared_tiles = sizes.shared_inner / kTileRows;
  const bool shared = block < sizes.tokens * shared_tiles;
  const int at = shared ? block : block - sizes.tokens * shared_tiles;
  const int tiles = shared ? shared_tiles : sizes.inner / kTileRows;
  const int tile = at % tiles;
  const int token = shared ? at / tiles : at / tiles / sizes.slots;
  const int slot = shared ? sizes.slots : at / tiles % sizes.slots;
  allow_next_kernel();
  if (shared) {
    for (const WeightRows* matrix : {&p.shared_gate, &p.shared_up}) {
      prefetch_to_l2(matrix->data + tile * kTileRows * matrix->row_bytes, kTileRows * matrix->row_bytes, thread,
                     kThreads);
    }
  }
  wait_for_previous_kernel();
  if (!shared && warp == 0) {
    const int expert = choose(p, token, slot, tile == 0 && slot == 0);
    if (thread == 0) chosen = expert;
  }
  __syncthreads();
  const std::int64_t expert = shared ? 0 : chosen;

  const int units = sizes.hidden / 32;
  const FixedUnit* const x = p.x + token * units;
  const int lanes = row_lanes(units);
  const int row_step = kWarpSize / lanes;
  const int warp_row = tile * kTileRows + warp * kWarpRows;
  const int row_in_pass = thread % kWarpSize / lanes;
#pragma unroll 1
  for (int half = 0; half < 2; ++half) {
    const WeightRows& matrix = half == 0 ? (shared ? p.shared_gate : p.gate) : (shared ? p.shared_up : p.up);
    with_weights(matrix.type, [&]<DType kType>() {
      float sums[kRowPasses];
      row_products<kType>(matrix.data + expert * matrix.expert_bytes, matrix.row_bytes, warp_row + kWarpRows,
                          warp_row + row_in_pass, row_step, x, units, lanes, sums);
      if (thread % lanes == 0) {
#pragma unroll
        for (int i = 0; i < kRowPasses; ++i) {
          const int row = row_in_pass + i * row_step;
          if (row < kWarpRows) results[half][warp * kWarpRows + row] = sums[i];
        }
      }
    });
  }
  if (p.fetch_down && !shared) {
    const std::int64_t bytes = sizes.hidden * p.down.row_bytes / tiles;
    prefetch_to_l2(p.down.data + expert * p.down.expert_bytes + tile * bytes, bytes, thread, kThreads);
  }
  __syncthreads();
  if (thread >= 8) return;
  const auto four_of = [&](const float* from) { return *reinterpret_cast<const float4*>(from + 4 * thread); };
  const auto activate = [](float gate, float up) { return gate / (1.0F + expf(-gate)) * up; };
  const float4 gate = four_of(results[0]);
  const float4 up = four_of(results[1]);
  FixedUnit* const to = p.activated + token * sizes.inner_units() + slot * (sizes.inner / 32) + tile;
  fix_four({activate(gate.x, up.x), activate(gate.y, up.y), activate(gate.z, up.z), activate(gate.w, up.w)}, thread,
           0xFFU, *to);
}

}  // namespace

void launch_moe_gate_up(const MoeMatvec& p, const DeviceProperties& device, cudaStream_t stream) {
  const GateUp parameters{p.sizes, p.renormalize, p.fetch_down, p.gate,      p.up,  p.shared_gate, p.shared_up,
                          p.down,  p.logits,      p.x_units,    p.activated, p.ids, p.weights};
  const int tiles = p.sizes.tokens * (p.sizes.slots * p.sizes.inner + p.sizes.shared_inner) / kTileRows;
  launch_early(moe_gate_up, static_cast<unsigned>(tiles), kThreads, 0, device, stream, MoeFfnArgs::kName, parameters);
}

}  // namespace thalweg::cu
