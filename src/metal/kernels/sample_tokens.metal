// The next token of each row of logits. Greedy: the largest rank of each segment, then of the row. Otherwise the second
// launch draws, a threadgroup for a row: the cuts of top-k and top-p are found eight bits of a key at a time, in
// histograms, and the drawn token in the order of ids. Sums are integers, so that no order changes them.

#include "metal/kernels/sample_weights.h"

inline bool is_given(int setting) { return (kSettings & setting) != 0; }

// The row of history; -1: absent, -2: out of range.
inline int sample_slot(constant SampleParameters& p, device const int* slots, int n) {
  const int slot = is_given(kGivenSlots) ? slots[n] : n;
  return slot < -1 || (is_given(kGivenHistory) && slot >= p.history_slots) ? -2 : slot;
}

inline bool is_allowed(constant SampleParameters& p, device const uint* allowed, int64_t n, int token) {
  return !is_given(kGivenAllowed) || (allowed[n * p.allowed_row + token / 32] >> (token % 32) & 1u) != 0u;
}
// A logit of a token that is not allowed. What is no number stays what it is, so that it is found.
inline float forbidden(float logit) {
  const float infinity = as_type<float>(0x7F800000u);
  return logit < infinity ? -infinity : logit;
}

// Threadgroup: a segment of a row.
[[max_total_threads_per_threadgroup(256)]] kernel void copy_logits(constant SampleParameters& p [[buffer(0)]],
                                                                   device const float* logits [[buffer(1)]],  // [N,V]
                                                                   device float* values [[buffer(2)]],        // [N,V]
                                                                   device const uint* allowed
                                                                   [[buffer(3)]],  // [N,ceil(V/32)]
                                                                   uint3 group [[threadgroup_position_in_grid]],
                                                                   uint thread_index [[thread_index_in_threadgroup]]) {
  const int64_t n = int64_t(group.y);
  for (int i = 0; i < kSegment; i += kSegmentThreads) {
    const int token = int(group.x) * kSegment + i + int(thread_index);
    if (token >= p.vocabulary) break;
    const float logit = logits[n * p.logits_row + token];
    values[n * p.vocabulary + token] = is_allowed(p, allowed, n, token) ? logit : forbidden(logit);
  }
}

// Threadgroup: a row, whose recent tokens are penalized from their raw logits: one that occurs twice is stored twice.
[[max_total_threads_per_threadgroup(256)]] kernel void penalize_logits(
    constant SampleParameters& p [[buffer(0)]],
    device const float* logits [[buffer(1)]],   // [N,V]
    device atomic_uint* values [[buffer(2)]],   // [N,V]
    device const int* lengths [[buffer(3)]],    // [N]
    device const int* history [[buffer(4)]],    // [slots,C]
    device const int* slots [[buffer(5)]],      // [N]
    device const float* penalty [[buffer(6)]],  // [N]
    device const int* last [[buffer(7)]],       // [N]
    device const uint* allowed [[buffer(8)]],   // [N,ceil(V/32)]
    uint3 group [[threadgroup_position_in_grid]], uint thread_index [[thread_index_in_threadgroup]]) {
  const int n = int(group.x);
  const int slot = sample_slot(p, slots, n);
  if (slot < 0 || penalty[n] == 1.0f) return;
  const int length = clamp(lengths[n], 0, p.history_size);
  const int count = is_given(kGivenLast) ? last[n] : 64;
  const int first = count < 0 ? 0 : max(length - count, 0);
  for (int i = first + int(thread_index); i < length; i += kSegmentThreads) {
    const int token = history[slot * p.history_slot + i];
    if (token < 0 || token >= p.vocabulary) continue;
    const float raw = logits[n * p.logits_row + token];
    const float penalized = raw > 0.0f ? raw / penalty[n] : raw * penalty[n];
    const float value = is_allowed(p, allowed, n, token) ? penalized : forbidden(penalized);
    atomic_store_explicit(values + (int64_t(n) * p.vocabulary + token), as_type<uint>(value), memory_order_relaxed);
  }
}

// Threadgroup: a segment of a row.
[[max_total_threads_per_threadgroup(256)]] kernel void largest_ranks(constant SampleParameters& p [[buffer(0)]],
                                                                     device const float* logits [[buffer(1)]],  // [N,V]
                                                                     device const int* slots [[buffer(2)]],     // [N]
                                                                     device ulong* ranks [[buffer(3)]],  // [N,segments]
                                                                     threadgroup ulong* scratch [[threadgroup(0)]],
                                                                     uint3 group [[threadgroup_position_in_grid]],
                                                                     uint thread_index [[thread_index_in_threadgroup]],
                                                                     uint simdgroup [[simdgroup_index_in_threadgroup]],
                                                                     uint lane [[thread_index_in_simdgroup]]) {
  const int n = int(group.y);
  if (sample_slot(p, slots, n) < 0) return;
  ulong best = 0;
  for (int i = 0; i < kSegment; i += kSegmentThreads) {
    const int token = int(group.x) * kSegment + i + int(thread_index);
    if (token < p.vocabulary) best = max(best, rank_of(logits[n * p.logits_row + token], token));
  }
  best = threadgroup_max(best, scratch, simdgroup, kSegmentThreads / 32, lane);
  if (thread_index == 0) ranks[int64_t(n) * p.segments + group.x] = best;
}

// A threadgroup that has a row.
struct SampleRow {
  float largest;
  float temperature;
  uint cut;  // tokens of larger keys are kept, and of this key the first `ties` by id
  uint ties;
  ulong least;  // share that min_p asks for
};

inline ulong kept_weight(thread const SampleRow& row, uint key) {
  if (key < row.cut) return 0;
  const ulong share = share_of(logit_of(key), row.largest, row.temperature);
  return share < row.least ? 0ul : weight_of_share(share);
}

// A histogram of `kSampleBins` bins: a number of tokens, and a weight in two words, for which there are atomics.
struct SampleBins {
  threadgroup atomic_uint* low;
  threadgroup atomic_uint* high;
};

// The key in which the tokens of falling keys reach `wanted`, and what is wanted of this key: of their number, or of
// their weight if `by_weight`.
struct FoundKey {
  uint key;
  ulong wanted;
};
inline FoundKey find_key(thread const SampleRow& row, device const float* logits, int vocabulary, bool by_weight,
                         ulong wanted, thread const SampleBins& bins, threadgroup ulong* found, uint thread_index) {
  uint prefix = 0;
  for (int shift = 24; shift >= 0; shift -= 8) {
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int bin = int(thread_index); bin < kSampleBins; bin += kSampleThreads) {
      atomic_store_explicit(bins.low + bin, 0u, memory_order_relaxed);
      atomic_store_explicit(bins.high + bin, 0u, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (int token = int(thread_index); token < vocabulary; token += kSampleThreads) {
      const uint key = key_of(logits[token]);
      if (shift < 24 && key >> (shift + 8) != prefix) continue;
      const ulong amount =
          by_weight ? (key < row.cut ? 0ul : weight_of_share(share_of(logit_of(key), row.largest, row.temperature)))
                    : 1ul;
      if (amount == 0) continue;
      const uint bin = key >> shift & 255u;
      const uint word = uint(amount);
      const uint sum = atomic_fetch_add_explicit(bins.low + bin, word, memory_order_relaxed) + word;
      const uint upper = uint(amount >> 32) + (sum < word ? 1u : 0u);
      if (upper != 0u) atomic_fetch_add_explicit(bins.high + bin, upper, memory_order_relaxed);
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    if (thread_index == 0) {
      ulong left = wanted;
      uint bin = kSampleBins - 1;
      for (; bin > 0u; --bin) {
        const ulong amount = ulong(atomic_load_explicit(bins.high + bin, memory_order_relaxed)) << 32 |
                             atomic_load_explicit(bins.low + bin, memory_order_relaxed);
        if (left <= amount) break;
        left -= amount;
      }
      found[0] = bin;
      found[1] = left;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);
    prefix = prefix << 8 | uint(found[0]);
    wanted = found[1];
  }
  FoundKey result;
  result.key = prefix;
  result.wanted = wanted;
  return result;
}

// The first and the last token of a simdgroup's share of a row; lanes have neighbors.
inline int share_begin(int vocabulary, uint simdgroup) {
  const int size = (vocabulary + kSampleThreads - 1) / kSampleThreads * 32;
  return min(int(simdgroup) * size, vocabulary);
}

// Memory of a threadgroup that draws.
struct SampleScratch {
  threadgroup ulong* reduced;  // [simdgroups]
  threadgroup ulong* found;    // [2]
  SampleBins bins;             // [256] each
  threadgroup ulong* sums;     // [simdgroups]
  threadgroup ulong* ties;     // [simdgroups]
};

struct SampleThread {
  uint index;
  uint simdgroup;
  uint simdgroups;
  uint lane;
};

// What the row's settings keep. top_k and the others are the row's own, or what keeps all.
inline void find_cut(thread SampleRow& row, device const float* values, int vocabulary, int top_k, float top_p,
                     thread const SampleScratch& scratch, SampleThread self) {
  if (top_k > 0 && top_k < vocabulary) {
    const FoundKey key =
        find_key(row, values, vocabulary, false, ulong(top_k), scratch.bins, scratch.found, self.index);
    row.cut = key.key;
    row.ties = uint(key.wanted);
  }
  if (!(top_p < 1.0f)) return;
  // Equal keys have equal weights: those of the cut's key are counted, and multiplied.
  ulong mass = 0;
  for (int token = int(self.index); token < vocabulary; token += kSampleThreads) {
    const uint key = key_of(values[token]);
    if (key > row.cut) mass += weight_of_share(share_of(logit_of(key), row.largest, row.temperature));
  }
  mass = threadgroup_total(mass, scratch.reduced, self.simdgroup, self.simdgroups, self.lane);
  if (row.cut > 0u) mass += row.ties * weight_of_share(share_of(logit_of(row.cut), row.largest, row.temperature));
  const ulong wanted = max(min(share_of_total(max(top_p, 0.0f), mass), mass), 1ul);
  const FoundKey key = find_key(row, values, vocabulary, true, wanted, scratch.bins, scratch.found, self.index);
  const ulong weight = weight_of_share(share_of(logit_of(key.key), row.largest, row.temperature));
  row.cut = key.key;
  row.ties = uint((key.wanted + weight - 1) / weight);
}

// How many tokens of the cut's key come before the simdgroup's share of the ids.
inline ulong ties_before(thread const SampleRow& row, device const float* values, int begin, int end,
                         thread const SampleScratch& scratch, SampleThread self) {
  ulong count = 0;
  for (int token = begin + int(self.lane); token < end; token += 32) count += key_of(values[token]) == row.cut ? 1 : 0;
  count = shuffled(simdgroup_prefix(count, self.lane), 31);
  threadgroup_barrier(mem_flags::mem_threadgroup);
  if (self.lane == 0) scratch.ties[self.simdgroup] = count;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ulong before = 0;
  for (uint i = 0; i < self.simdgroup; ++i) before += scratch.ties[i];
  return before;
}

// Adds the weights of the simdgroup's share of the ids, in their order, to `sum`. The token in which the sum passes
// `drawn`, if there is one, is written to `chosen` by the lane that has it.
inline ulong sum_share(thread const SampleRow& row, device const float* values, int begin, int end, ulong tied,
                       ulong sum, bool draws, ulong drawn, device int* chosen, uint lane) {
  for (int first = begin; first < end; first += 32) {
    const int token = first + int(lane);
    const uint key = token < end ? key_of(values[token]) : 0u;
    const bool tie = token < end && key == row.cut;
    const ulong rank = tied + simdgroup_prefix(tie ? 1ul : 0ul, lane);  // from 1 on
    const bool kept = token < end && (!tie || rank <= ulong(row.ties));
    const ulong after = sum + simdgroup_prefix(kept ? kept_weight(row, key) : 0ul, lane);
    const ulong previous = shuffled(after, lane == 0 ? 0 : lane - 1);
    if (draws && drawn >= (lane == 0 ? sum : previous) && drawn < after) *chosen = token;
    sum = shuffled(after, 31);
    tied = shuffled(rank, 31);
  }
  return sum;
}

// Threadgroup: a row.
[[max_total_threads_per_threadgroup(1024)]] kernel void choose_tokens(
    constant SampleParameters& p [[buffer(0)]],
    device const float* logits [[buffer(1)]],       // [N,V]
    device const ulong* ranks [[buffer(2)]],        // [N,segments]
    device const int* lengths [[buffer(3)]],        // [N]
    device const int* slots [[buffer(4)]],          // [N]
    device const float* temperature [[buffer(5)]],  // [N]
    device const int* top_k [[buffer(6)]],          // [N]
    device const float* top_p [[buffer(7)]],        // [N]
    device const float* min_p [[buffer(8)]],        // [N]
    device const uint* seed [[buffer(9)]],          // [N,2]
    device int* tokens [[buffer(10)]],              // [N]
    device atomic_int* fault [[buffer(11)]],        // [1]
    threadgroup ulong* scratch [[threadgroup(0)]], uint3 group [[threadgroup_position_in_grid]],
    uint thread_index [[thread_index_in_threadgroup]], uint simdgroup [[simdgroup_index_in_threadgroup]],
    uint simdgroups [[simdgroups_per_threadgroup]], uint lane [[thread_index_in_simdgroup]]) {
  const int n = int(group.x);
  const int slot = sample_slot(p, slots, n);
  ulong largest = 0;
  if (slot >= 0) {
    for (int i = int(thread_index); i < p.segments; i += int(simdgroups) * 32) {
      largest = max(largest, ranks[int64_t(n) * p.segments + i]);
    }
  }
  largest = threadgroup_max(largest, scratch, simdgroup, simdgroups, lane);
  const bool exists = slot >= 0 && has_probabilities(largest);
  const bool draws = exists && is_given(kGivenTemperature) && temperature[n] > 0.0f;
  if (!draws) {
    if (thread_index != 0) return;
    tokens[n] = exists ? token_of_rank(largest) : -1;
    const int bits = slot < -1 ? int(kBadIndices) : slot >= 0 && !exists ? int(kBadLogits) : 0;
    if (kHasFault && bits != 0) atomic_fetch_or_explicit(fault, bits, memory_order_relaxed);
    return;
  }
  SampleScratch memory;
  memory.reduced = scratch;
  memory.found = scratch + 32;
  memory.bins.low = (threadgroup atomic_uint*)(scratch + 34);
  memory.bins.high = memory.bins.low + kSampleBins;
  memory.sums = scratch + 34 + kSampleBins;
  memory.ties = memory.sums + 32;
  SampleThread self;
  self.index = thread_index;
  self.simdgroup = simdgroup;
  self.simdgroups = simdgroups;
  self.lane = lane;
  device const float* values = logits + n * p.logits_row;
  SampleRow row;
  row.largest = logit_of(key_of_rank(largest));
  row.temperature = temperature[n];
  row.cut = 0;
  row.ties = ~0u;
  row.least = 0;
  find_cut(row, values, p.vocabulary, is_given(kGivenTopK) ? top_k[n] : 0, is_given(kGivenTopP) ? top_p[n] : 1.0f,
           memory, self);
  if (is_given(kGivenMinP)) row.least = ulong(min(max(min_p[n], 0.0f), 1.0f) * 9.223372036854775808e18f);

  // Each simdgroup sums its share of the ids; the one in which the sum passes what is drawn repeats it.
  const int begin = share_begin(p.vocabulary, simdgroup);
  const int end = share_begin(p.vocabulary, simdgroup + 1);
  const ulong tied = ties_before(row, values, begin, end, memory, self);
  const ulong own = sum_share(row, values, begin, end, tied, 0, false, 0, tokens + n, lane);
  if (lane == 0) memory.sums[simdgroup] = own;
  threadgroup_barrier(mem_flags::mem_threadgroup);
  ulong before = 0;
  ulong total = 0;
  for (uint i = 0; i < simdgroups; ++i) {
    if (i < simdgroup) before += memory.sums[i];
    total += memory.sums[i];
  }
  const ulong low = is_given(kGivenSeed) ? ulong(seed[n * p.seed_row]) : 0ul;
  const ulong high = is_given(kGivenSeed) ? ulong(seed[n * p.seed_row + 1]) : 0ul;
  const ulong bits = draw_bits(low | high << 32, lengths[n]);
  const ulong drawn = high_product(bits << 11, total);  // bits * total / 2^53, rounded down
  if (drawn < before || drawn >= before + own) return;
  sum_share(row, values, begin, end, tied, before, true, drawn, tokens + n, lane);
}
