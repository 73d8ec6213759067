// Ranks that are threads of one process: a queue of messages for each pair.

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <utility>

#include "comm/transport.h"

namespace thalweg::comm {
namespace {

struct Mailboxes {
  explicit Mailboxes(int size)
      : count(size), queues(static_cast<std::size_t>(size) * static_cast<std::size_t>(size)), gone(queues.size()) {}

  std::deque<std::vector<std::byte>>& queue(int from, int to) {
    return queues[static_cast<std::size_t>(from) * static_cast<std::size_t>(count) + static_cast<std::size_t>(to)];
  }

  int count;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::deque<std::vector<std::byte>>> queues;
  std::vector<bool> gone;  // by rank
};

class ThreadTransport : public Transport {
 public:
  ThreadTransport(std::shared_ptr<Mailboxes> mailboxes, int rank) : mailboxes_(std::move(mailboxes)), rank_(rank) {}
  ~ThreadTransport() override { leave(); }

  void exchange(std::span<const Send> sends, std::span<const Receive> receives, double timeout) override {
    std::unique_lock lock(mailboxes_->mutex);
    for (const Send& send : sends) {
      if (mailboxes_->gone[static_cast<std::size_t>(send.peer)]) throw lost(send.peer, "one that has ended");
      const auto* bytes = static_cast<const std::byte*>(send.data);
      mailboxes_->queue(rank_, send.peer).emplace_back(bytes, bytes + send.bytes);
    }
    mailboxes_->changed.notify_all();
    for (const Receive& receive : receives) {
      auto& queue = mailboxes_->queue(receive.peer, rank_);
      const bool came = mailboxes_->changed.wait_for(lock, std::chrono::duration<double>(timeout), [&] {
        return !queue.empty() || mailboxes_->gone[static_cast<std::size_t>(receive.peer)];
      });
      if (!came) throw silent(receive.peer, timeout);
      if (queue.empty()) throw lost(receive.peer, "one that has ended");
      const std::vector<std::byte> message = std::move(queue.front());
      queue.pop_front();
      if (message.size() != receive.bytes) throw lost(receive.peer, "one that makes another call");
      if (receive.bytes > 0) std::memcpy(receive.data, message.data(), receive.bytes);
    }
  }

  int ended_rank() override {
    const std::lock_guard lock(mailboxes_->mutex);
    const auto found = std::find(mailboxes_->gone.begin(), mailboxes_->gone.end(), true);
    return found == mailboxes_->gone.end() ? -1 : static_cast<int>(found - mailboxes_->gone.begin());
  }
  void abandon() noexcept override { leave(); }

 private:
  void leave() noexcept {
    const std::lock_guard lock(mailboxes_->mutex);
    mailboxes_->gone[static_cast<std::size_t>(rank_)] = true;
    mailboxes_->changed.notify_all();
  }

  std::shared_ptr<Mailboxes> mailboxes_;
  int rank_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> connect_threads(int count) {
  const auto mailboxes = std::make_shared<Mailboxes>(count);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < count; ++rank) transports.push_back(std::make_unique<ThreadTransport>(mailboxes, rank));
  return transports;
}

}  // namespace thalweg::comm
