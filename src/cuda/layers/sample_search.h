#pragma once

// Finds the cut of top-k and top-p without sorting: a histogram over the 11 highest bits of the keys says in which bin
// the cut lies, one over the next 11 bits of that bin's keys where in it, one over the last 10 the key itself. A bin
// holds the number of its tokens and the sum of their weights.

#include "cuda/layers/sample_rows.h"

namespace thalweg::cu {

constexpr int kBins = 2048;
// Of level 0, 1 or 2: the bits below the level's, and its bins.
template <int kLevel>
constexpr int kLowBits = kLevel == 0   ? 21
                         : kLevel == 1 ? 10
                                       : 0;
template <int kLevel>
constexpr std::uint32_t kLastBin = kLevel == 2 ? 1023 : 2047;

struct Histogram {
  U64 mass[kBins];
  std::uint32_t count[kBins];
};
// First over all keys, then for top-k and for top-p two each.
constexpr int kHistograms = 5;

// A row between the kernels. Each kernel reads the one before and writes its own.
struct Search {
  std::uint32_t largest_key = 0;
  bool drawn = false;        // false: the row's token is written
  bool searching = false;    // the cut has a prefix
  std::uint32_t prefix = 0;  // the high bits of the cut's key
  U64 wanted = 0;            // of the bin: how many tokens, or how much weight
  U64 above = 0;             // weight of larger prefixes
  U64 total = 0;             // weight of what is kept so far
  Cut cut;
};

// A block's share of a histogram, in shared memory: 64-bit sums as two words, for which there are atomics.
struct BlockHistogram {
  std::uint32_t count[kBins];
  std::uint32_t low[kBins];
  std::uint32_t high[kBins];

  __device__ void clear() {
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kRowThreads) {
      count[bin] = low[bin] = high[bin] = 0;
    }
    __syncthreads();
  }
  __device__ void add(std::uint32_t bin, const Tally& tally) {
    atomicAdd(&count[bin], tally.count);
    const auto word = static_cast<std::uint32_t>(tally.mass);
    const std::uint32_t sum = atomicAdd(&low[bin], word) + word;
    const std::uint32_t carry = sum < word ? 1U : 0U;
    const std::uint32_t upper = static_cast<std::uint32_t>(tally.mass >> 32) + carry;
    if (upper != 0) atomicAdd(&high[bin], upper);
  }
  __device__ void add_to(Histogram& all) {
    __syncthreads();
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kRowThreads) {
      if (count[bin] == 0) continue;
      atomicAdd(&all.count[bin], count[bin]);
      atomicAdd(&all.mass[bin], static_cast<U64>(high[bin]) << 32 | low[bin]);
    }
  }
};

// Adds the keys of segments [first, last) that begin with `prefix` to the histogram of a level.
template <int kLevel>
__device__ void count_keys(const SampleRows& rows, int n, int first, int last, const Search& search,
                           BlockHistogram& histogram) {
  const Weights weights(rows, n, search.largest_key);
  // Neighbors in one bin are added at once: equal logits would all wait for the same word.
  std::uint32_t bin = 0;
  Tally run{0, 0};
  for (int segment = first; segment < last; ++segment) {
    std::uint32_t keys[kSegmentLoads];
    load_keys(rows, n, segment, keys);
#pragma unroll
    for (const std::uint32_t key : keys) {
      if (key == 0) continue;
      if (kLevel > 0 && key >> kLowBits<kLevel - 1> != search.prefix) continue;
      const U64 weight = weights(key);
      if (weight == 0) continue;
      const std::uint32_t of_key = key >> kLowBits<kLevel> & kLastBin<kLevel>;
      if (of_key != bin && run.count > 0) {
        histogram.add(bin, run);
        run = {0, 0};
      }
      bin = of_key;
      run = run + Tally{weight, 1};
    }
  }
  if (run.count > 0) histogram.add(bin, run);
}

struct Bin {
  std::uint32_t bin;
  Tally above;  // of the bins of larger keys
  U64 wanted;   // of this bin; 0: no bin was searched for
};

enum class By { kCount, kMass };

// The bin in which the likeliest tokens reach wanted(tally of all), if that is not 0.
template <class Wanted>
__device__ Bin find_bin(const Histogram& histogram, By by, Wanted wanted) {
  constexpr int kOfThread = kBins / kRowThreads;
  __shared__ Bin found;
  const int highest = kBins - 1 - kOfThread * static_cast<int>(threadIdx.x);
  Tally bins[kOfThread];
  Tally own{0, 0};
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    bins[i] = {histogram.mass[highest - i], histogram.count[highest - i]};
    own = own + bins[i];
  }
  Tally total;
  Tally before = block_scan(own, total);
  const U64 goal = wanted(total);
  if (goal == 0) return {0, {0, 0}, 0};
  const auto measure = [by](const Tally& tally) { return by == By::kMass ? tally.mass : U64{tally.count}; };
#pragma unroll
  for (int i = 0; i < kOfThread; ++i) {
    const Tally after = before + bins[i];
    if (measure(before) < goal && goal <= measure(after)) {
      found = {static_cast<std::uint32_t>(highest - i), before, goal - measure(before)};
    }
    before = after;
  }
  __syncthreads();
  return found;
}

// The next bits of a cut.
__device__ inline void search_in(const Histogram& histogram, By by, int bits, Search& search) {
  const Bin bin = find_bin(histogram, by, [&](const Tally&) { return search.wanted; });
  search.prefix = search.prefix << bits | bin.bin;
  search.above += bin.above.mass;
  search.wanted = bin.wanted;
}

// top-k's first bits. Keeps all if there are no more than k tokens of any weight.
__device__ inline void begin_top_k(const SampleRows& rows, int n, const Histogram& first, Search& search) {
  Tally all{0, 0};
  const Bin bin = find_bin(first, By::kCount, [&](const Tally& total) -> U64 {
    all = total;
    const std::int32_t k = rows.top_k[n];
    return k > 0 && static_cast<std::uint32_t>(k) < total.count ? static_cast<U64>(k) : 0;
  });
  search.total = all.mass;
  search.searching = bin.wanted > 0;
  search.prefix = bin.bin;
  search.wanted = bin.wanted;
  search.above = bin.above.mass;
}

__device__ inline void end_top_k(const SampleRows& rows, int n, const Histogram& last, Search& search) {
  if (!search.searching) return;
  search_in(last, By::kCount, 10, search);
  search.cut = {search.prefix, static_cast<std::uint32_t>(search.wanted)};
  search.total = search.above + search.wanted * Weights(rows, n, search.largest_key)(search.prefix);
}

// top-p's first bits, after top-k.
__device__ inline void begin_top_p(const SampleRows& rows, int n, const Histogram& first, Search& search) {
  const Bin bin = find_bin(first, By::kMass, [&](const Tally& total) -> U64 {
    if (rows.top_k == nullptr) search.total = total.mass;
    const float p = rows.top_p[n];
    if (!(p < 1.0F)) return 0;
    const U64 mass = __double2ull_ru(static_cast<double>(fmaxf(p, 0.0F)) * static_cast<double>(search.total));
    return max(min(mass, search.total), U64{1});
  });
  search.searching = bin.wanted > 0;
  search.prefix = bin.bin;
  search.wanted = bin.wanted;
}

__device__ inline void end_top_p(const SampleRows& rows, int n, const Histogram& last, Search& search) {
  if (!search.searching) return;
  search_in(last, By::kMass, 10, search);
  const U64 weight = Weights(rows, n, search.largest_key)(search.prefix);
  search.cut = {search.prefix, static_cast<std::uint32_t>((search.wanted + weight - 1) / weight)};
}

}  // namespace thalweg::cu
