#pragma once

// The experts of the router that this rank holds: all of them, unless several ranks share them.

#include <cstdint>

namespace thalweg::cu {

struct ExpertRange {
  int first = 0;
  int count = INT32_MAX;

  // The index among those that are here; -1 for another rank's.
  __host__ __device__ int index_of(int expert) const {
    const int index = expert - first;
    return index >= 0 && index < count ? index : -1;
  }
};

}  // namespace thalweg::cu
