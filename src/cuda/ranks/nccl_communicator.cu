#include "cuda/ranks/nccl_communicator.h"

#include <atomic>
#include <cstring>
#include <memory>

#include "cuda/launch.h"
#include "cuda/layers/rms_norm.h"
#include "cuda/ranks/nccl_library.h"
#include "cuda/ranks/peer_sums.h"
#include "thalweg/device_memory.h"

namespace thalweg::cu {
namespace {

class NcclCommunicator final : public DeviceCommunicator {
 public:
  NcclCommunicator(Device device, const NcclId& id, int rank, int count) : device_(device), rank_(rank) {
    const CurrentDevice current(Stream{device, 0, nullptr}, "ranks");
    check_nccl(nccl().comm_init_rank(&communicator_, count, id, rank), nullptr);
    peers_ = PeerSums::connect(device.index, rank, count,
                               [&](std::span<std::byte> all, std::size_t bytes) { gather_on_host(all, bytes); });
  }
  ~NcclCommunicator() override {
    if (!aborted_) nccl().comm_destroy(communicator_);
  }

  void all_reduce(const Stream& stream, void* data, DType dtype, std::int64_t count) override {
    const CurrentDevice current(stream, "ranks");
    if (peers_ != nullptr && peers_->takes(data, dtype, count)) {
      usable();
      return peers_->enqueue(native(stream), data, dtype, count);
    }
    check_nccl(
        nccl().all_reduce(data, data, static_cast<std::size_t>(count),
                          dtype == DType::kF32 ? kNcclFloat32 : kNcclBfloat16, kNcclSum, usable(), stream.native),
        communicator_);
  }

  bool sum_and_norm(const Stream& stream, const RmsNormArgs& args) override {
    if (peers_ == nullptr) return false;
    usable();
    return enqueue_summed_norm(args, peers_->inboxes(), stream);
  }

  void all_gather(const Stream& stream, void* data, std::size_t bytes) override {
    const CurrentDevice current(stream, "ranks");
    const std::byte* const mine = static_cast<std::byte*>(data) + bytes * static_cast<std::size_t>(rank_);
    check_nccl(nccl().all_gather(mine, data, bytes, kNcclUint8, usable(), stream.native), communicator_);
  }

  void exchange(const Stream& stream, std::span<const RankTransfer> sends,
                std::span<const RankTransfer> receives) override {
    const CurrentDevice current(stream, "ranks");
    const Nccl& library = nccl();
    NcclComm const communicator = usable();
    check_nccl(library.group_start(), communicator);
    int result = kNcclSuccess;
    for (const RankTransfer& one : sends) {
      if (result != kNcclSuccess) break;
      result = library.send(one.data, one.bytes, kNcclUint8, one.rank, communicator, stream.native);
    }
    for (const RankTransfer& one : receives) {
      if (result != kNcclSuccess) break;
      result = library.receive(one.data, one.bytes, kNcclUint8, one.rank, communicator, stream.native);
    }
    const int ended = library.group_end();
    check_nccl(result != kNcclSuccess ? result : ended, communicator);
  }

  std::string failure() override {
    if (aborted_) return "given up";
    int error = kNcclSuccess;
    if (nccl().comm_get_async_error(communicator_, &error) != kNcclSuccess) return "NCCL does not answer";
    if (error == kNcclSuccess || error == kNcclInProgress) return {};
    return std::string("NCCL reports: ") + nccl().get_error_string(error);
  }

  void abort() noexcept override {
    if (aborted_.exchange(true)) return;
    if (peers_ != nullptr) peers_->stop();
    nccl().comm_abort(communicator_);
  }

 private:
  NcclComm usable() const {
    if (aborted_) throw Error("ranks", "NCCL", "ranks that run together", "ranks that were given up");
    return communicator_;
  }

  // Rows [ranks,bytes] in the host's memory.
  void gather_on_host(std::span<std::byte> all, std::size_t bytes) {
    const auto close = [](cudaStream_t stream) { cudaStreamDestroy(stream); };
    cudaStream_t made = nullptr;
    check(cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking), "ranks");
    const std::unique_ptr<CUstream_st, decltype(close)> stream(made, close);
    const DeviceMemory memory(device_, all.size());
    check(cudaMemcpyAsync(memory.data(), all.data(), all.size(), cudaMemcpyHostToDevice, made), "ranks");
    all_gather(Stream{device_, 0, made}, memory.data(), bytes);
    check(cudaMemcpyAsync(all.data(), memory.data(), all.size(), cudaMemcpyDeviceToHost, made), "ranks");
    check(cudaStreamSynchronize(made), "ranks");
  }

  Device device_;
  int rank_;
  NcclComm communicator_ = nullptr;
  std::unique_ptr<PeerSums> peers_;  // null: a device does not reach another
  std::atomic<bool> aborted_ = false;
};

std::string unavailable() { return nccl().unavailable; }

void require_nccl() {
  if (!nccl().unavailable.empty()) throw Error("ranks", "device", "NCCL for ranks on GPUs", nccl().unavailable);
}

int devices() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();
  return 0;
}

// Whoever sets a device, and sets another one again after a call, makes a context on both.
void make_current(Device device) { check(cudaSetDevice(device.index), "device"); }

std::vector<std::byte> make_id() {
  require_nccl();
  NcclId id{};
  check_nccl(nccl().get_unique_id(&id), nullptr);
  std::vector<std::byte> bytes(sizeof id);
  std::memcpy(bytes.data(), &id, sizeof id);
  return bytes;
}

std::unique_ptr<DeviceCommunicator> connect(Device device, std::span<const std::byte> bytes, int rank, int count) {
  require_nccl();
  NcclId id{};
  if (bytes.size() != sizeof id) {
    throw Error("ranks", "id", std::to_string(sizeof id) + " bytes", std::to_string(bytes.size()));
  }
  std::memcpy(&id, bytes.data(), sizeof id);
  return std::make_unique<NcclCommunicator>(device, id, rank, count);
}

}  // namespace

const DeviceRanks& nccl_ranks() {
  static constexpr DeviceRanks kRanks{unavailable, devices, make_current, make_id, connect};
  return kRanks;
}

}  // namespace thalweg::cu
