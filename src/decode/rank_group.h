#pragma once

// The ranks that run a model together, as the decoder sees them. Rank 0 leads: it sends the others a command for each
// call of its Model, and they run the commands in order.

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "decode/memory_segments.h"
#include "decode/rank_messages.h"
#include "decode/ranked_device.h"
#include "thalweg/ranks.h"
#include "thalweg/tensor.h"

namespace thalweg::decode {

// Bytes of a slot: the recurrent and convolution states of all layers, or keys and values of some tokens, or both.
struct SlotPart {
  int slot = 0;
  bool states = false;
  std::int64_t first = 0;  // token
  std::int64_t count = 0;
};

// What rank 0's commands make another rank do.
class Follower {
 public:
  virtual ~Follower() = default;
  virtual void run(std::span<const RankedChunk> chunks, bool each_logits) = 0;
  virtual void start_loop(std::span<const RankedStart> starts, bool ignore_end) = 0;
  virtual void launch_loop() = 0;
  virtual void clear(int slot) = 0;
  virtual void read(const SlotPart& part, std::byte* to) = 0;
  virtual void write(const SlotPart& part, const std::byte* from) = 0;
};

class RankGroup {
 public:
  explicit RankGroup(std::shared_ptr<Ranks> ranks);
  // Rank 0 sends the others home.
  ~RankGroup();
  RankGroup(const RankGroup&) = delete;
  RankGroup& operator=(const RankGroup&) = delete;

  int rank() const { return comm_.rank(); }
  int count() const { return comm_.size(); }
  bool leads() const { return rank() == 0; }

  // Something that must be the same everywhere.
  struct Fact {
    std::string_view what;  // "file"
    std::uint64_t value = 0;
  };
  // Throws Error on every rank if a fact differs, and names the ranks whose fact is not that of most.
  void compare(std::span<const Fact> facts);
  // Every rank's bytes of a slot's state, and of a token's keys and values.
  void set_sizes(std::uint64_t fixed_bytes, std::uint64_t token_bytes);
  // Waits until every rank has loaded its share. From here on rank 0 sends commands, and looks after idle ranks.
  void begin();

  // On rank 0, sends the others home, which the destructor does too; devices wait for each other as they disconnect.
  void end() noexcept;

  // Where the model runs on a device; null: on the host.
  void set_device(RankedDevice* device) { device_ = device; }
  RankedDevice* device() const { return device_; }
  comm::Communicator& host() const { return comm_; }
  // Waits for every rank, however long it reads its file.
  void assemble();
  // On every rank: whether it is so on all of them.
  bool all_agree(bool mine);

  // Each rank has the whole model, and does what rank 0 does, but for prompts that they share (sequence_share.h): a
  // slot's state is the same on all.
  void set_replicas() { replicas_ = true; }
  bool replicas() const { return replicas_; }
  // Within a run, memory where the model runs: to another rank, which takes as many bytes.
  void give(int rank, std::span<const MemorySegment> segments);
  void take(int rank, std::span<const MemorySegment> segments);

  // Of the ranks above 0 together.
  std::uint64_t others_bytes(const SlotPart& part) const;

  // On every rank, within a run. y, contiguous where the model runs, becomes the sum of all ranks'.
  void all_reduce(const Tensor& y);
  // rms_norm with the sum of all ranks' args.delta as delta; false where ranks do not sum in the norm.
  bool sum_and_norm(const RmsNormArgs& args) { return device_ != nullptr && device_->sum_and_norm(args); }
  // On the host: rank 0's logits [rows,vocabulary] f32 from each rank's columns [rows,..], which are contiguous and in
  // rank order.
  void gather_columns(const ConstTensor& mine, const Tensor& logits, std::int64_t vocabulary);

  // On rank 0. Has the others run the chunks while `body` does so here.
  void run(std::span<const RankedChunk> chunks, bool each_logits, const std::function<void()>& body);
  // The same of a DecodeLoop's start and steps.
  void start_loop(std::span<const RankedStart> starts, bool ignore_end, const std::function<void()>& body);
  void launch_loop(const std::function<void()>& body);
  void clear(int slot);
  // The others' bytes, one after the other: others_bytes(part). Of replicas nothing is read, and all are written the
  // same bytes.
  void read(const SlotPart& part, std::byte* to);
  void write(const SlotPart& part, const std::byte* from);

  // On the other ranks: runs rank 0's commands until the last one. Throws Error if a rank is lost.
  void follow(Follower& follower);

 private:
  enum class Kind : std::uint32_t { kEnd, kPing, kRun, kStartLoop, kLaunchLoop, kClear, kRead, kWrite };
  struct Command {
    Kind kind = Kind::kEnd;
    std::int32_t slot = 0;
    std::int32_t flag = 0;
    std::int32_t unused = 0;
    std::int64_t first = 0;
    std::int64_t count = 0;
    std::uint64_t bytes = 0;  // of the message that follows
  };
  static_assert(sizeof(Command) == 40, "sent as it lies in memory");

  std::uint64_t bytes_of_rank(int rank, const SlotPart& part) const;
  void send(const Command& command, std::span<const std::byte> message = {});
  void lead(const Command& command, std::span<const std::byte> message, const std::function<void()>& body);
  void send_heartbeats();
  void follow(const Command& command, Follower& follower);

  std::shared_ptr<Ranks> ranks_;
  comm::Communicator& comm_;
  struct Sizes {
    std::uint64_t fixed = 0;
    std::uint64_t token = 0;
  };
  std::vector<Sizes> sizes_;         // by rank
  std::vector<std::byte> received_;  // of gather_columns and follow
  RankedDevice* device_ = nullptr;
  bool replicas_ = false;
  bool begun_ = false;
  bool ended_ = false;
  std::mutex command_mutex_;  // of a whole command, its run included
  std::mutex ending_mutex_;
  std::condition_variable ending_changed_;
  bool ending_ = false;
  std::thread idle_thread_;
};

}  // namespace thalweg::decode
