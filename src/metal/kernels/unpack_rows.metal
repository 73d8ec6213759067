// Rows of a table, all of them or those that ids name, unpacked; without ids also of several tables. Threadgroup: 1024
// columns of a row.

#include "metal/kernels/formats.h"
#include "metal/kernels/parameters_layers.h"

[[max_total_threads_per_threadgroup(128)]] kernel void unpack_rows(constant UnpackParameters& p [[buffer(0)]],
                                                                   device const uchar* table [[buffer(1)]],  // [E,R,D]
                                                                   device const int* ids [[buffer(2)]],      // [T]
                                                                   device void* y [[buffer(3)]],             // [E,T,D]
                                                                   uint3 group [[threadgroup_position_in_grid]],
                                                                   uint thread_index [[thread_index_in_threadgroup]]) {
  const int octet = int(group.x) * kMoveThreads + int(thread_index);
  if (octet * 8 >= kWidth) return;
  const int row = kIndexed ? ids[group.y] : int(group.y);
  Weights8 eight;
  if (row >= 0 && row < p.rows) {
    device const uchar* from = table + int64_t(group.z) * p.table_bytes + row * p.row_bytes;
    eight = unpack(from, octet, kWidth, scale_of(from, octet));
  } else {
    for (int i = 0; i < 8; ++i) eight.w[i] = 0.0f;
  }
  for (int i = 0; i < 8 && octet * 8 + i < kWidth; ++i) {
    store(y, kOutType, int64_t(group.z) * p.y_table + int64_t(group.y) * p.y_row + octet * 8 + i, eight.w[i]);
  }
}
