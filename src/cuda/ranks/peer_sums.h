#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "cuda/common/peer_exchange.h"
#include "thalweg/dtype.h"

namespace thalweg::cu {

// Sums of a few bytes over the GPUs of one machine, by one kernel on each: a rank writes its summand into the others'
// memory, and adds what it finds in its own. Takes what a step of few tokens sums, in half the time of a ring.
class PeerSums {
 public:
  // On every rank; `gather(bytes of all ranks, bytes of one)` has them exchange what they put in their own row. Null
  // where a device does not reach another, on every rank.
  using Gather = std::function<void(std::span<std::byte> all, std::size_t bytes)>;
  static std::unique_ptr<PeerSums> connect(int device, int rank, int ranks, const Gather& gather);

  ~PeerSums();
  PeerSums(const PeerSums&) = delete;
  PeerSums& operator=(const PeerSums&) = delete;

  bool takes(const void* data, DType dtype, std::int64_t count) const;
  // data[count], F32 or BF16, becomes the sum in the order of ranks. The device is current.
  void enqueue(cudaStream_t stream, void* data, DType dtype, std::int64_t count) const;

  const PeerInboxes& inboxes() const { return view_; }

  // Ends the sums that wait for another rank.
  void stop() noexcept { *stop_ = 1; }

 private:
  PeerSums(int device, int rank, int ranks);
  bool open(std::span<const std::byte> rows);

  int device_;
  PeerInboxes view_{};
  bool opened_[PeerInboxes::kMostRanks] = {};  // another process's memory
  volatile int* stop_ = nullptr;
};

}  // namespace thalweg::cu
