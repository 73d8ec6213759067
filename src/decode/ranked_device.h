#pragma once

// The device of a rank among several: what the model sums with the others' devices, and the thread that gives the ranks
// up if one is lost while this one waits for it.

#include <cstdint>
#include <memory>
#include <span>

#include "comm/communicator.h"
#include "decode/runtime.h"
#include "thalweg/tensor.h"

namespace thalweg::decode {

class RankedDevice final : public WaitListener {
 public:
  // Connects the runtime's device with the others', by `ranks`; every rank makes the call, and `host` is their way
  // meanwhile. Throws Error if there is no communication, and for a rank that does not come.
  RankedDevice(Runtime& runtime, const DeviceRanks& ranks, comm::Communicator& host);
  // After the graphs that recorded calls.
  ~RankedDevice() override;

  // In the model's stream; a graph may record them, then on every rank. They throw Error once the ranks are given up.
  void all_reduce(const Tensor& y);
  bool sum_and_norm(const RmsNormArgs& args);  // DeviceCommunicator::sum_and_norm
  void exchange(std::span<const RankTransfer> sends, std::span<const RankTransfer> receives);
  // Of logits [rows,vocabulary] each rank computes some columns: mine(logits), between the two calls.
  void begin_columns(const Tensor& logits);
  void end_columns(const Tensor& logits);
  Tensor mine(const Tensor& logits) const;

  // While the device works, it is expected to come to an end.
  class Working {
   public:
    explicit Working(RankedDevice* device) : device_(device) {
      if (device_ != nullptr) device_->begin_wait();
    }
    ~Working() {
      if (device_ != nullptr) device_->end_wait();
    }
    Working(const Working&) = delete;
    Working& operator=(const Working&) = delete;

   private:
    RankedDevice* device_;
  };
  void begin_wait() noexcept override;
  void end_wait() noexcept override;
  void check() const override;
  void explain() const override;

 private:
  struct State;

  // Whether rows of logits lie as the ranks' columns do, one after the other.
  bool in_order(const Tensor& logits) const;

  Runtime& runtime_;
  comm::Communicator& host_;
  std::shared_ptr<State> state_;
};

}  // namespace thalweg::decode
