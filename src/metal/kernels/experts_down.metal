// y = sum over slots of weight_s down[expert_s] h_s, and the shared expert's output with its own weight. Threadgroup: a
// token and 32 outputs.

#include "metal/kernels/parameters_layers.h"
#include "metal/kernels/row_products.h"

constant constexpr int kRowSets = kColumnsOfDown / kColumnsOfVector;  // of four rows, of a simdgroup

[[max_total_threads_per_threadgroup(128)]] kernel void experts_down(constant ExpertMatmulParameters& p [[buffer(0)]],
                                                                    device const uchar* down [[buffer(1)]],  // [E,N,K]
                                                                    device const float* h [[buffer(2)]],     // [T,S,K]
                                                                    device const int* ids [[buffer(3)]],     // [T,S]
                                                                    device const float* weights [[buffer(4)]],  // [T,S]
                                                                    device const float* shared [[buffer(5)]],   // [T,N]
                                                                    device const float* shared_logit
                                                                    [[buffer(6)]],                 // [T]
                                                                    device void* y [[buffer(7)]],  // [T,N]
                                                                    uint3 group [[threadgroup_position_in_grid]],
                                                                    uint simdgroup [[simdgroup_index_in_threadgroup]],
                                                                    uint lane [[thread_index_in_simdgroup]]) {
  const int token = int(group.y);
  const int first = int(group.x) * kColumnsOfDown + int(simdgroup) * kRowSets * kRowsOfSimdgroup;
  if (first >= p.n) return;
  float sums[kRowSets][kRowsOfSimdgroup];
  THALWEG_UNROLL
  for (int set = 0; set < kRowSets; ++set) {
    THALWEG_UNROLL
    for (int r = 0; r < kRowsOfSimdgroup; ++r) sums[set][r] = 0.0f;
  }
  // The lanes share the items of all slots: those of one would leave most of them idle where K is small.
  const int items = lane_items(p.k);
  for (int i = int(lane); i < p.slots * items; i += 32) {
    const int slot = i / items;
    const int expert = ids[token * p.ids_token + slot];
    if (expert < 0 || expert >= p.experts) continue;
    const float weight = weights[token * p.slots + slot];
    device const uchar* first_row = down + expert * p.weight_expert + first * p.weight_row;
    const LaneItem item = lane_item(i % items);
    RowScales scales[kRowSets];
    THALWEG_UNROLL
    for (int set = 0; set < kRowSets; ++set) {
      const int row = set * kRowsOfSimdgroup;
      scales[set] = row_scales(first_row + row * p.weight_row, p.weight_row, p.n - first - row, item);
    }
    THALWEG_UNROLL
    for (int pair = 0; pair < kMostLanePairs; ++pair) {
      if (pair >= kLanePairs) continue;
      const InputPair inputs = load_inputs(h, kF32, token * p.x_token + slot * p.x_slot, item, pair, p.k);
      THALWEG_UNROLL
      for (int set = 0; set < kRowSets; ++set) {
        THALWEG_UNROLL
        for (int r = 0; r < kRowsOfSimdgroup; ++r) {
          const int row = set * kRowsOfSimdgroup + r;
          if (first + row >= p.n) continue;
          const OctetPair pair_weights = row_pair(first_row + row * p.weight_row, item, pair, scales[set].row[r], p.k);
          sums[set][r] += weight * dot_pair(pair_weights, inputs);
        }
      }
    }
  }
  THALWEG_UNROLL
  for (int set = 0; set < kRowSets; ++set) {
    THALWEG_UNROLL
    for (int r = 0; r < kRowsOfSimdgroup; ++r) {
      const int row = first + set * kRowsOfSimdgroup + r;
      float sum = simd_sum(sums[set][r]);
      if (lane != 0 || row >= p.n) continue;
      if (kShared) sum += sigmoid(shared_logit[token]) * shared[int64_t(token) * p.n + row];
      store(y, kOutType, token * p.y_token + row, sum);
    }
  }
}
