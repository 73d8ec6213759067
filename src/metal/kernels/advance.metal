// The next step's input from the tokens that were chosen. Thread: a sequence.

#include "metal/kernels/parameters_layers.h"

#include "metal/kernels/common.h"

[[max_total_threads_per_threadgroup(128)]] kernel void advance(constant AdvanceParameters& p [[buffer(0)]],
                                                               device const int* tokens [[buffer(1)]],  // [N]
                                                               device const int* ends [[buffer(2)]],    // [E]
                                                               device int* ids [[buffer(3)]],           // [N]
                                                               device int* positions [[buffer(4)]],     // [N]
                                                               device int* lengths [[buffer(5)]],       // [N]
                                                               device int* slots [[buffer(6)]],         // [N]
                                                               device int* history [[buffer(7)]],       // [slots,C]
                                                               uint3 group [[threadgroup_position_in_grid]],
                                                               uint thread_index [[thread_index_in_threadgroup]]) {
  const int n = int(group.x) * kMoveThreads + int(thread_index);
  if (n >= p.count || slots[n] < 0) return;
  const int token = tokens[n];
  bool ends_here = token == -1;
  for (int i = 0; i < p.ends; ++i) ends_here = ends_here || ends[i] == token;
  if (ends_here) {
    slots[n] = -1;
    return;
  }
  const int length = lengths[n];
  if (slots[n] < p.history_slots && length < p.history_size) history[slots[n] * p.history_slot + length] = token;
  ids[n] = token;
  positions[n] += 1;
  lengths[n] = length + 1;
}
