#pragma once

// Several ranks whose models run on devices: collective calls on the devices' memory, in the order of a stream.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "thalweg/device.h"
#include "thalweg/dtype.h"
#include "thalweg/nn.h"

namespace thalweg {

// Bytes on a device that go to another rank or come from it.
struct RankTransfer {
  int rank = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
};

// One rank's. Every rank makes the same calls in the same order, all in streams of its own device; a graph may record
// them, but then on every rank. Calls only enqueue. They throw thalweg::Error on failure.
class DeviceCommunicator {
 public:
  DeviceCommunicator() = default;
  // The work that was enqueued must be complete, and graphs that recorded calls must be gone.
  virtual ~DeviceCommunicator() = default;
  DeviceCommunicator(const DeviceCommunicator&) = delete;
  DeviceCommunicator& operator=(const DeviceCommunicator&) = delete;

  // data[count], F32 or BF16, becomes the sum over the ranks: the same bits on each, and in equal runs.
  virtual void all_reduce(const Stream& stream, void* data, DType dtype, std::int64_t count) = 0;
  // rms_norm whose delta is the sum over the ranks of args.delta, which itself is left as it is. False, the same on
  // every rank, where this is no call of its own, and nothing has been enqueued.
  virtual bool sum_and_norm(const Stream& /*stream*/, const RmsNormArgs& /*args*/) { return false; }
  // data[ranks,bytes]: each rank has row r of rank r.
  virtual void all_gather(const Stream& stream, void* data, std::size_t bytes) = 0;

  // Between two ranks, or more: the other side makes the matching call, with as many transfers in the same order.
  virtual void exchange(const Stream& stream, std::span<const RankTransfer> sends,
                        std::span<const RankTransfer> receives) = 0;

  // What went wrong on the way between the devices; empty while all is well. Any thread may ask.
  virtual std::string failure() = 0;
  // Ends the calls that wait for another rank; their results are undefined. Another thread may be within a call.
  // Returns when nothing runs any more and the graphs are gone, which may be never if another rank hangs.
  virtual void abort() noexcept = 0;
};

// How the ranks of a backend's devices find each other. All of them throw thalweg::Error on failure.
struct DeviceRanks {
  std::string (*unavailable)();  // empty, or why there is no communication
  int (*devices)();              // of this machine
  // Makes the device the calling thread's own, so that a rank leaves nothing on the other ranks' devices.
  void (*make_current)(Device device);
  // What connects the ranks: one of them makes it, and all have the same bytes.
  std::vector<std::byte> (*make_id)();
  // Waits for the other ranks, without a limit.
  std::unique_ptr<DeviceCommunicator> (*connect)(Device device, std::span<const std::byte> id, int rank, int count);
};

}  // namespace thalweg
