#pragma once

#include "ops/check.h"

namespace thalweg {

// What attention and store_kv say of new tokens in a cache [slots,S,..]: cu_seqlens i32 [N+1] over T, lengths i32 [N]
// and, optionally, slots i32 [N] or pages i32 [N,P]; binds N, and checks their values on the host.
void check_cache_places(Check& check, const ConstTensor& cu_seqlens, const ConstTensor& lengths,
                        const ConstTensor& slots, const ConstTensor& pages, const Dim& t, const Dim& num_slots,
                        const Dim& s);

// Blocks of Q8_0 are read and written 16 bits at a time.
inline void check_cache_alignment(const Check& check, const ConstTensor& k_cache, const ConstTensor& v_cache) {
  if (!rows_aligned_to(k_cache, 2)) check.fail("k_cache", "an even address", "an odd one");
  if (!rows_aligned_to(v_cache, 2)) check.fail("v_cache", "an even address", "an odd one");
}

}  // namespace thalweg
