#pragma once

// The gated norm of the outputs of the fused step for many sequences, a head of a token by a warp, in a launch after
// that of the states. Pipeline: z is loaded while the launch of the states still runs.

#include "cuda/common/pdl.h"
#include "cuda/gated_delta/decode.h"
#include "cuda/gated_delta/step_head.h"

namespace thalweg::cu {

constexpr int kStepNormHeads = 4;  // of a block
constexpr int kStepNormThreads = kStepNormHeads * kWarpSize;

// Of one head of a token, by a warp, whose lanes have four neighbors each; `place` is the token's in its row.
struct OutputNorm {
  RawFour z;
  RawFour weight;

  __device__ static int column() { return static_cast<int>(threadIdx.x) % kWarpSize * 4; }
  __device__ void read(const DecodeStep& p, int row, int place, int head) {
    z = RawFour::read(p.z, p.z.offset(row, place, head) + column());
    weight = RawFour::read(p.norm_weight, column());
  }
  __device__ void store(const DecodeStep& p, int row, int place, int head, const float4& outputs) const {
    const float squares =
        warp_sum(outputs.x * outputs.x + outputs.y * outputs.y + (outputs.z * outputs.z + outputs.w * outputs.w));
    const float factor = rsqrtf(squares / static_cast<float>(kStepV) + p.norm_eps);
    float gates[4];
    float weights[4];
    z.convert(p.z, gates);
    weight.convert(p.norm_weight, weights);
    const auto normed = [&](float output, int i) { return gated_norm(output, factor, weights[i], gates[i]); };
    const float4 y = {normed(outputs.x, 0), normed(outputs.y, 1), normed(outputs.z, 2), normed(outputs.w, 3)};
    const std::int64_t to = p.y.offset(row, place, head) + column();
    with_type(p.y.dtype, [&]<class Y>(Y) { store_four(static_cast<Y*>(p.y.data) + to, y); });
  }
};

// Heads along x, a sequence's own tokens along y, sequences along z.
template <class Sequence>
__global__ void __launch_bounds__(kStepNormThreads) step_norm(const __grid_constant__ DecodeStep p) {
  const int head = static_cast<int>(blockIdx.x) * kStepNormHeads + static_cast<int>(threadIdx.x) / kWarpSize;
  const int own = static_cast<int>(blockIdx.y);
  const int number = static_cast<int>(blockIdx.z);
  Sequence sequence{};
  if (head >= p.hk * p.ratio || !sequence.find(p, number) || sequence.first_own() + own >= sequence.count) {
    pdl_wait();
    return;
  }
  const int place = sequence.place(sequence.first_own() + own);
  OutputNorm norm;
  norm.read(p, sequence.row, place, head);
  pdl_wait();
  const std::int64_t row = (static_cast<std::int64_t>(number) * p.most_tokens + own) * p.hk * p.ratio + head;
  norm.store(p, sequence.row, place, head, read_prepared(p.outputs + row * kStepV + norm.column()));
  pdl_trigger();
}

}  // namespace thalweg::cu
