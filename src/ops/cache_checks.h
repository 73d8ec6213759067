#pragma once

#include "ops/check.h"

namespace thalweg {

// What attention and store_kv say of new tokens in a cache [slots,S,..]: cu_seqlens i32 [N+1] over T, lengths i32 [N]
// and, optionally, slots i32 [N] or pages i32 [N,P]; binds N, and checks their values on the host.
void check_cache_places(Check& check, const ConstTensor& cu_seqlens, const ConstTensor& lengths,
                        const ConstTensor& slots, const ConstTensor& pages, const Dim& t, const Dim& num_slots,
                        const Dim& s);

}  // namespace thalweg
