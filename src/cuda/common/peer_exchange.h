#pragma once

// How blocks of the ranks' kernels exchange a few bytes over the memory of their GPUs.
//
// An item is eight bytes. It travels as 16, each four followed by the number of the call, so that whoever finds the
// number has the data too: there is neither a fence nor a flag to wait for behind it. A block has a region of its own
// in every inbox, and counts its own calls, which all ranks make in the same order. Two regions take turns: a rank that
// writes the one of two calls before has had the other rank's items of the last, which were sent after that one had
// been read.

#include <cuda_bf16.h>

#include <cstdint>

namespace thalweg::cu {

// A kernel's view of the memory that ranks of one machine share. An inbox is [ranks,2,blocks,items] of 16 bytes.
struct PeerInboxes {
  static constexpr int kMostRanks = 8;
  static constexpr int kBlocks = 64;
  static constexpr int kItems = 1024;  // of a block

  uint4* inboxes[kMostRanks];  // by rank
  std::uint32_t* epochs;       // [blocks], this rank's
  const int* stop;             // in the host's memory: not 0 once the ranks are given up
  int rank;
  int ranks;
};

// Sums of an item's elements, in f32.
template <class T>
struct ItemSum;

template <>
struct ItemSum<float> {
  float sums[2] = {};
  __device__ void add(uint2 item) {
    sums[0] += __uint_as_float(item.x);
    sums[1] += __uint_as_float(item.y);
  }
  __device__ uint2 item() const { return {__float_as_uint(sums[0]), __float_as_uint(sums[1])}; }
};

template <>
struct ItemSum<__nv_bfloat16> {
  float sums[4] = {};
  __device__ void add(uint2 item) {
    sums[0] += __uint_as_float(item.x << 16);
    sums[1] += __uint_as_float(item.x & 0xFFFF0000U);
    sums[2] += __uint_as_float(item.y << 16);
    sums[3] += __uint_as_float(item.y & 0xFFFF0000U);
  }
  __device__ static std::uint32_t two(float low, float high) {
    const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const std::uint32_t*>(&x);
  }
  __device__ uint2 item() const { return {two(sums[0], sums[1]), two(sums[2], sums[3])}; }
};

// A call of a block.
class PeerCall {
 public:
  __device__ PeerCall(const PeerInboxes& peers, int block)
      : peers_(peers), block_(block), epoch_(peers.epochs[block] + 1) {}

  // Gives the other ranks this one's item i, below kItems.
  __device__ void send(int i, uint2 own) const {
    for (int other = 0; other < peers_.ranks; ++other) {
      if (other == peers_.rank) continue;
      asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(region(other, peers_.rank) + i),
                   "r"(own.x), "r"(epoch_), "r"(own.y), "r"(epoch_)
                   : "memory");
    }
  }
  // The sum of item i in the order of ranks, `own` being this one's. Undefined once the ranks are given up.
  template <class T>
  __device__ uint2 sum(int i, uint2 own) const {
    ItemSum<T> sum;
    for (int source = 0; source < peers_.ranks; ++source) {
      sum.add(source == peers_.rank ? own : receive(region(peers_.rank, source) + i));
    }
    return sum.item();
  }
  // By one thread, when all have all their sums.
  __device__ void end() const { peers_.epochs[block_] = epoch_; }

 private:
  __device__ uint4* region(int owner, int source) const {
    const std::int64_t regions = (source * 2 + (epoch_ & 1U)) * PeerInboxes::kBlocks + block_;
    return peers_.inboxes[owner] + regions * PeerInboxes::kItems;
  }
  __device__ uint2 receive(const uint4* from) const {
    constexpr int kLookEvery = 4096;
    for (int i = 1;; ++i) {
      uint4 found;
      asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                   : "l"(from)
                   : "memory");
      const bool stopped = i % kLookEvery == 0 && *static_cast<const volatile int*>(peers_.stop) != 0;
      if ((found.y == epoch_ && found.w == epoch_) || stopped) return {found.x, found.z};
    }
  }

  const PeerInboxes& peers_;
  int block_;
  std::uint32_t epoch_;
};

}  // namespace thalweg::cu
