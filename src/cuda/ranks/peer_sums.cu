#include "cuda/ranks/peer_sums.h"

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

template <class T>
__global__ void __launch_bounds__(kThreads)
    sum_kernel(const __grid_constant__ PeerInboxes peers, uint2* data, int items, int per_block) {
  pdl_trigger_and_wait();
  const int first = static_cast<int>(blockIdx.x) * per_block;
  const int count = min(per_block, items - first);
  const PeerCall call(peers, static_cast<int>(blockIdx.x));
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) call.send(i, data[first + i]);
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    data[first + i] = call.sum<T>(i, data[first + i]);
  }
  __syncthreads();
  if (threadIdx.x == 0) call.end();
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
