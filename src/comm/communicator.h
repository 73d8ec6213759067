#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/transport.h"
#include "thalweg/dtype.h"

namespace thalweg::comm {

// Collective calls: every rank makes the same ones in the same order, one at a time. Sums are those of the ranks in
// order, each element in f32 and rounded once: equal calls give equal bits, and every rank gets the same ones. After an
// Error every later call throws it too.
class Communicator {
 public:
  Communicator(int rank, int size, double timeout, std::unique_ptr<Transport> transport);

  int rank() const { return rank_; }
  int size() const { return size_; }
  double timeout() const { return timeout_; }

  // data[count] becomes the sum over the ranks; F32 or BF16.
  void all_reduce(void* data, DType dtype, std::int64_t count);
  // to[size,count]: the data [count] of each rank, summed; a rank keeps the row that is its own, in to[count].
  void reduce_scatter(const void* from, void* to, DType dtype, std::int64_t count);
  // to[size,bytes]: each rank's from[bytes].
  void all_gather(const void* from, void* to, std::size_t bytes);
  // Row r of from[size,bytes] goes to rank r; row r of to[size,bytes] is what rank r sent here.
  void all_to_all(const void* from, void* to, std::size_t bytes);
  // The bytes of rank `root` for all.
  void broadcast(void* data, std::size_t bytes, int root = 0);
  // Waits for every rank, at most `timeout` seconds for each.
  void barrier(double timeout);
  void barrier() { barrier(timeout_); }

  // Between two ranks, or more: the other side makes the matching call.
  void exchange(std::span<const Send> sends, std::span<const Receive> receives) { exchange(sends, receives, timeout_); }
  void exchange(std::span<const Send> sends, std::span<const Receive> receives, double timeout);

  // Gives the ranks up, for a reason that is not the transport's; the others learn that this rank is gone.
  void fail(const std::string& why) noexcept;
  std::string failure() const;  // empty while all is well; any thread may ask
  // A rank that has ended although it was not told to, as far as that can be known without a call; -1: none. Any thread
  // may ask.
  int ended_rank() const;
  // All ranks end now.
  void finish() noexcept { transport_->finish(); }

 private:
  void require_whole() const;
  // The elements [begin, end) of a vector that rank `rank` sums up.
  std::int64_t cut(std::int64_t count, int rank) const { return count * rank / size_; }

  int rank_;
  int size_;
  double timeout_;
  std::unique_ptr<Transport> transport_;
  std::vector<std::byte> received_;
  std::vector<Send> sends_;
  std::vector<Receive> receives_;
  mutable std::mutex mutex_;
  std::string failure_;
};

}  // namespace thalweg::comm
