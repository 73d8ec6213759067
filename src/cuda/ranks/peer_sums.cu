// An item is eight bytes of the data. It travels as 16, each four followed by the number of the call, so that whoever
// finds the number has the data too: there is neither a fence nor a flag to wait for behind it. A block has a region of
// its own in every inbox, and counts its own calls, which all ranks make in the same order. Two regions take turns: a
// rank that writes the one of two calls before has had the other rank's items of the last, which were sent after that
// one had been read.

#include "cuda/ranks/peer_sums.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

#include "cuda/common/pdl.h"
#include "cuda/device.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 256;
constexpr std::int64_t kItemBytes = 8;

__device__ inline void send(uint4* to, uint2 item, std::uint32_t epoch) {
  asm volatile("st.volatile.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(item.x), "r"(epoch), "r"(item.y),
               "r"(epoch)
               : "memory");
}

// False if the ranks are given up.
__device__ inline bool receive(const uint4* from, std::uint32_t epoch, const volatile int* stop, uint2& item) {
  constexpr int kLookEvery = 4096;
  for (int i = 1;; ++i) {
    uint4 found;
    asm volatile("ld.volatile.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.x), "=r"(found.y), "=r"(found.z), "=r"(found.w)
                 : "l"(from)
                 : "memory");
    if (found.y == epoch && found.w == epoch) {
      item = {found.x, found.z};
      return true;
    }
    if (i % kLookEvery == 0 && *stop != 0) return false;
  }
}

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

template <class T>
__global__ void __launch_bounds__(kThreads) sum_kernel(const PeerInboxes p, uint2* data, int items, int per_block) {
  constexpr std::int64_t kRegion = PeerInboxes::kItems;
  pdl_trigger_and_wait();
  const int block = static_cast<int>(blockIdx.x);
  const int first = block * per_block;
  const int count = min(per_block, items - first);
  const std::uint32_t epoch = p.epochs[block] + 1;
  const auto region = [&](int owner, int source) {
    return p.inboxes[owner] + ((source * 2 + (epoch & 1U)) * PeerInboxes::kBlocks + block) * kRegion;
  };
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    const uint2 own = data[first + i];
    for (int other = 0; other < p.ranks; ++other) {
      if (other != p.rank) send(region(other, p.rank) + i, own, epoch);
    }
  }
  bool all = true;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    ItemSum<T> sum;
    for (int source = 0; source < p.ranks; ++source) {
      uint2 item = data[first + i];
      if (source != p.rank) all = all && receive(region(p.rank, source) + i, epoch, p.stop, item);
      sum.add(item);
    }
    if (all) data[first + i] = sum.item();
  }
  __syncthreads();
  if (threadIdx.x == 0) p.epochs[block] = epoch;
}

// What a rank says of itself.
struct Introduction {
  std::uint64_t machine;  // of the running system
  std::uint64_t process;
  std::int32_t device;
  std::int32_t ready;  // the memory below is there
  void* inbox;
  cudaIpcMemHandle_t handle;
};

std::uint64_t machine_id() {
  std::string id;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> id;
  return id.empty() ? 0 : std::hash<std::string>()(id);
}

// A process id says little: of two containers it may be the same.
std::uint64_t process_id() {
  static const std::uint64_t id = [] {
    std::random_device random;
    return std::uint64_t{random()} << 32 | random();
  }();
  return id;
}

bool succeeds(cudaError_t result) {
  if (result == cudaSuccess) return true;
  cudaGetLastError();  // it is not to be found by a later call
  return false;
}

std::size_t inbox_bytes(int ranks) {
  return std::size_t{2} * PeerInboxes::kBlocks * PeerInboxes::kItems * sizeof(uint4) * static_cast<std::size_t>(ranks);
}

}  // namespace

PeerSums::PeerSums(int device, int rank, int ranks) : device_(device) {
  view_.rank = rank;
  view_.ranks = ranks;
}

std::unique_ptr<PeerSums> PeerSums::connect(int device, int rank, int ranks, const Gather& gather) {
  std::unique_ptr<PeerSums> sums(new PeerSums(device, rank, ranks));
  const auto bytes = inbox_bytes(ranks);
  void* memory = nullptr;
  void* stop = nullptr;
  Introduction own{machine_id(), process_id(), device, 0, nullptr, {}};
  // Epochs behind the inbox; everything is 0, which is no call's number.
  const std::size_t all_bytes = bytes + PeerInboxes::kBlocks * sizeof(std::uint32_t);
  if (ranks <= PeerInboxes::kMostRanks && own.machine != 0 && succeeds(cudaMalloc(&memory, all_bytes))) {
    sums->view_.inboxes[rank] = static_cast<uint4*>(memory);
    sums->view_.epochs = reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(memory) + bytes);
    const bool made = succeeds(cudaMemset(memory, 0, all_bytes)) && succeeds(cudaDeviceSynchronize()) &&
                      succeeds(cudaHostAlloc(&stop, sizeof(int), cudaHostAllocPortable | cudaHostAllocMapped)) &&
                      succeeds(cudaIpcGetMemHandle(&own.handle, memory));
    if (stop != nullptr) {
      sums->stop_ = static_cast<int*>(stop);
      *sums->stop_ = 0;
      sums->view_.stop = static_cast<const int*>(stop);
    }
    own.inbox = memory;
    own.ready = made ? 1 : 0;
  }
  std::vector<Introduction> rows(static_cast<std::size_t>(ranks));
  rows[static_cast<std::size_t>(rank)] = own;
  gather(std::as_writable_bytes(std::span(rows)), sizeof(Introduction));
  const bool reaches = sums->open(std::as_bytes(std::span(rows)));
  std::vector<std::int32_t> votes(static_cast<std::size_t>(ranks));
  votes[static_cast<std::size_t>(rank)] = reaches ? 1 : 0;
  gather(std::as_writable_bytes(std::span(votes)), sizeof(std::int32_t));
  const bool everywhere = std::find(votes.begin(), votes.end(), 0) == votes.end();
  return everywhere ? std::move(sums) : nullptr;
}

bool PeerSums::open(std::span<const std::byte> rows) {
  std::vector<Introduction> all(static_cast<std::size_t>(view_.ranks));
  std::memcpy(all.data(), rows.data(), rows.size());
  const Introduction& own = all[static_cast<std::size_t>(view_.rank)];
  for (int rank = 0; rank < view_.ranks; ++rank) {
    const Introduction& other = all[static_cast<std::size_t>(rank)];
    if (other.ready == 0 || other.machine != own.machine) return false;
    if (rank == view_.rank) continue;
    void* memory = other.inbox;
    if (other.process == own.process) {
      const cudaError_t result = cudaDeviceEnablePeerAccess(other.device, 0);
      if (!succeeds(result) && result != cudaErrorPeerAccessAlreadyEnabled) return false;
    } else {
      if (!succeeds(cudaIpcOpenMemHandle(&memory, other.handle, cudaIpcMemLazyEnablePeerAccess))) return false;
      opened_[rank] = true;
    }
    view_.inboxes[rank] = static_cast<uint4*>(memory);
  }
  return true;
}

PeerSums::~PeerSums() {
  const CurrentDevice current(Stream{Device{DeviceType::kCuda, device_}, 0, nullptr}, "ranks");
  for (int rank = 0; rank < view_.ranks && rank < PeerInboxes::kMostRanks; ++rank) {
    if (opened_[rank]) succeeds(cudaIpcCloseMemHandle(view_.inboxes[rank]));
  }
  if (view_.rank < PeerInboxes::kMostRanks) succeeds(cudaFree(view_.inboxes[view_.rank]));
  succeeds(cudaFreeHost(const_cast<int*>(stop_)));
}

bool PeerSums::takes(const void* data, DType dtype, std::int64_t count) const {
  const std::int64_t bytes = count * (dtype == DType::kF32 ? 4 : 2);
  const std::int64_t most = std::int64_t{PeerInboxes::kBlocks} * PeerInboxes::kItems * kItemBytes;
  const bool aligned = reinterpret_cast<std::uintptr_t>(data) % kItemBytes == 0 && bytes % kItemBytes == 0;
  return (dtype == DType::kF32 || dtype == DType::kBF16) && aligned && bytes > 0 && bytes <= most;
}

void PeerSums::enqueue(cudaStream_t stream, void* data, DType dtype, std::int64_t count) const {
  const auto items = static_cast<int>(count * (dtype == DType::kF32 ? 4 : 2) / kItemBytes);
  // An item for each thread, while there are blocks.
  const int per_block = std::max(kThreads, (items + PeerInboxes::kBlocks - 1) / PeerInboxes::kBlocks);
  const dim3 grid(static_cast<unsigned>((items + per_block - 1) / per_block));
  pdl_launch(dtype == DType::kF32 ? sum_kernel<float> : sum_kernel<__nv_bfloat16>, grid, dim3(kThreads), 0,
             properties(device_), stream, "ranks", view_, static_cast<uint2*>(data), items, per_block);
}

}  // namespace thalweg::cu
