#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "thalweg/error.h"

namespace thalweg::comm {

struct Send {
  int peer = 0;
  const void* data = nullptr;
  std::size_t bytes = 0;
};

struct Receive {
  int peer = 0;
  void* data = nullptr;
  std::size_t bytes = 0;
};

// What carries bytes between ranks. The calls of a rank come one at a time.
class Transport {
 public:
  Transport() = default;
  virtual ~Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  // Sends and receives at once, at most one of each per peer, and returns when all is done. What one rank sends another
  // arrives in order. Throws Error for a peer that is gone, or with which nothing moves for `timeout` seconds.
  virtual void exchange(std::span<const Send> sends, std::span<const Receive> receives, double timeout) = 0;

  // A rank that is known to have ended, though no call waits for it; -1: none. Any thread may ask, but not at the same
  // time as abandon().
  virtual int ended_rank() { return -1; }
  // After an error: the other ranks' calls fail as soon as they can.
  virtual void abandon() noexcept = 0;
  // Before the end: all ranks are about to end, in peace.
  virtual void finish() noexcept {}
};

inline Error lost(int rank, std::string_view why) {
  return Error("ranks", "rank " + std::to_string(rank), "one that takes part", why);
}

inline Error silent(int rank, double timeout) {
  std::string seconds = std::to_string(timeout);
  seconds.resize(seconds.find('.') + 2);
  return lost(rank, "one that has been silent for " + seconds + " s: it hangs, or the network between does");
}

struct TcpOptions {
  int rank = 0;
  int count = 1;
  std::string address;
  int port = 0;
  double timeout = 30;
};

std::unique_ptr<Transport> connect_tcp(const TcpOptions& options);
// Also gives the rank and the number of ranks that MPI knows.
std::unique_ptr<Transport> connect_mpi(int& rank, int& count);
std::vector<std::unique_ptr<Transport>> connect_threads(int count);

}  // namespace thalweg::comm
