#include "decode/rank_group.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <exception>
#include <string>
#include <tuple>
#include <utility>

#include "decode/rank_messages.h"
#include "thalweg/error.h"

namespace thalweg::decode {
namespace {

// Ranks load at different speeds, from disks of their own.
constexpr double kLoadSeconds = 3600;

}  // namespace

RankGroup::RankGroup(std::shared_ptr<Ranks> ranks)
    : ranks_(std::move(ranks)), comm_(ranks_->communicator()), sizes_(static_cast<std::size_t>(comm_.size())) {}

RankGroup::~RankGroup() { end(); }

void RankGroup::end() noexcept {
  if (ended_) return;
  ended_ = true;
  {
    const std::lock_guard lock(ending_mutex_);
    ending_ = true;
  }
  ending_changed_.notify_all();
  if (idle_thread_.joinable()) idle_thread_.join();
  if (!begun_) comm_.fail("rank " + std::to_string(rank()) + " did not load the model");
  if (!leads() || !comm_.failure().empty()) return;
  try {
    send({Kind::kEnd});
    comm_.finish();
  } catch (const Error&) {  // another rank is gone: so is this one
    return;
  }
}

void RankGroup::compare(std::span<const Fact> facts) {
  std::vector<std::uint64_t> mine;
  for (const Fact& fact : facts) mine.push_back(fact.value);
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(count()));
  // A rank may have to read a large file's header from a slow disk first.
  assemble();
  comm_.all_gather(mine.data(), all.data(), mine.size() * sizeof(std::uint64_t));
  for (std::size_t f = 0; f < facts.size(); ++f) {
    const auto of = [&](int r) { return all[static_cast<std::size_t>(r) * facts.size() + f]; };
    std::uint64_t usual = of(0);
    int most = 0;
    for (int r = 0; r < count(); ++r) {
      int equal = 0;
      for (int other = 0; other < count(); ++other) equal += of(other) == of(r) ? 1 : 0;
      if (equal > most) std::tie(usual, most) = std::make_tuple(of(r), equal);
    }
    std::string others;
    for (int r = 0; r < count(); ++r) {
      if (of(r) != usual) others += (others.empty() ? "" : ", ") + std::to_string(r);
    }
    if (others.empty()) continue;
    const std::string why = "another one on rank " + others + " than on the others";
    comm_.fail(std::string(facts[f].what) + ": " + why);
    throw Error("ranks", facts[f].what, "the same on all " + std::to_string(count()) + " ranks", why);
  }
}

void RankGroup::assemble() { comm_.barrier(kLoadSeconds); }

void RankGroup::set_sizes(std::uint64_t fixed_bytes, std::uint64_t token_bytes) {
  const Sizes mine{fixed_bytes, token_bytes};
  comm_.barrier(kLoadSeconds);
  comm_.all_gather(&mine, sizes_.data(), sizeof mine);
}

void RankGroup::begin() {
  comm_.barrier(kLoadSeconds);
  begun_ = true;
  if (leads()) idle_thread_ = std::thread([this] { send_heartbeats(); });
}

std::uint64_t RankGroup::bytes_of_rank(int rank, const SlotPart& part) const {
  const Sizes& sizes = sizes_[static_cast<std::size_t>(rank)];
  return (part.states ? sizes.fixed : 0) + sizes.token * static_cast<std::uint64_t>(part.count);
}

std::uint64_t RankGroup::others_bytes(const SlotPart& part) const {
  std::uint64_t bytes = 0;
  if (replicas_) return bytes;
  for (int r = 1; r < count(); ++r) bytes += bytes_of_rank(r, part);
  return bytes;
}

void RankGroup::gather_columns(const ConstTensor& mine, const Tensor& logits, std::int64_t vocabulary) {
  const std::int64_t rows = mine.dim(0);
  const auto columns_before = [&](int r) { return vocabulary * r / count(); };
  const auto bytes_of_columns = [&](int r) {
    return static_cast<std::size_t>(rows * (columns_before(r + 1) - columns_before(r))) * sizeof(float);
  };
  if (!leads()) {
    const comm::Send send{0, mine.data, bytes_of_columns(rank())};
    comm_.exchange(std::span(&send, 1), {});
    return;
  }
  std::size_t total = 0;
  for (int r = 1; r < count(); ++r) total += bytes_of_columns(r);
  received_.resize(total);
  std::vector<comm::Receive> receives;
  std::byte* to = received_.data();
  for (int r = 1; r < count(); to += bytes_of_columns(r), ++r) receives.push_back({r, to, bytes_of_columns(r)});
  comm_.exchange({}, receives);
  for (int r = 0; r < count(); ++r) {
    const auto width = static_cast<std::size_t>(columns_before(r + 1) - columns_before(r)) * sizeof(float);
    const auto* from = r == 0 ? static_cast<const std::byte*>(mine.data)
                              : static_cast<const std::byte*>(receives[static_cast<std::size_t>(r) - 1].data);
    for (std::int64_t row = 0; row < rows; ++row) {
      auto* place = static_cast<float*>(logits.row(row)) + columns_before(r);
      std::memcpy(place, from + static_cast<std::size_t>(row) * width, width);
    }
  }
}

void RankGroup::send(const Command& command, std::span<const std::byte> message) {
  Command copy = command;
  copy.bytes = message.size();
  comm_.broadcast(&copy, sizeof copy);
  if (message.empty()) return;
  std::vector<comm::Send> sends;
  for (int r = 1; r < count(); ++r) sends.push_back({r, message.data(), message.size()});
  comm_.exchange(sends, {});
}

void RankGroup::all_reduce(const Tensor& y) {
  if (device_ != nullptr) return device_->all_reduce(y);
  comm_.all_reduce(y.data, y.dtype, y.size());
}

void RankGroup::give(int rank, std::span<const MemorySegment> segments) {
  if (device_ != nullptr) {
    std::vector<RankTransfer> sends;
    for (const MemorySegment& segment : segments) {
      if (segment.bytes > 0) sends.push_back({rank, segment.data, segment.bytes});
    }
    return device_->exchange(sends, {});
  }
  for (const MemorySegment& segment : segments) {  // one for each call: more at once would mix
    const comm::Send send{rank, segment.data, segment.bytes};
    comm_.exchange(std::span(&send, 1), {});
  }
}

void RankGroup::take(int rank, std::span<const MemorySegment> segments) {
  if (device_ != nullptr) {
    std::vector<RankTransfer> receives;
    for (const MemorySegment& segment : segments) {
      if (segment.bytes > 0) receives.push_back({rank, segment.data, segment.bytes});
    }
    return device_->exchange({}, receives);
  }
  for (const MemorySegment& segment : segments) {
    const comm::Receive receive{rank, segment.data, segment.bytes};
    comm_.exchange({}, std::span(&receive, 1));
  }
}

bool RankGroup::all_agree(bool mine) {
  const std::uint8_t vote = mine ? 1 : 0;
  std::vector<std::uint8_t> votes(static_cast<std::size_t>(count()));
  comm_.all_gather(&vote, votes.data(), sizeof vote);
  return std::find(votes.begin(), votes.end(), 0) == votes.end();
}

void RankGroup::lead(const Command& command, std::span<const std::byte> message, const std::function<void()>& body) {
  const std::lock_guard lock(command_mutex_);
  const RankedDevice::Working working(device_);
  send(command, message);
  try {
    body();
  } catch (const std::exception& error) {
    comm_.fail(std::string("rank 0 left a step: ") + error.what());
    throw;
  }
}

void RankGroup::run(std::span<const RankedChunk> chunks, bool each_logits, const std::function<void()>& body) {
  lead({Kind::kRun, 0, each_logits ? 1 : 0}, pack(chunks), body);
}

void RankGroup::start_loop(std::span<const RankedStart> starts, bool ignore_end, const std::function<void()>& body) {
  lead({Kind::kStartLoop, 0, ignore_end ? 1 : 0}, pack(starts), body);
}

void RankGroup::launch_loop(const std::function<void()>& body) { lead({Kind::kLaunchLoop}, {}, body); }

void RankGroup::clear(int slot) {
  const std::lock_guard lock(command_mutex_);
  send({Kind::kClear, slot});
}

void RankGroup::read(const SlotPart& part, std::byte* to) {
  if (replicas_) return;
  const std::lock_guard lock(command_mutex_);
  send({Kind::kRead, part.slot, part.states ? 1 : 0, 0, part.first, part.count});
  std::vector<comm::Receive> receives;
  for (int r = 1; r < count(); ++r) {
    receives.push_back({r, to, bytes_of_rank(r, part)});
    to += receives.back().bytes;
  }
  comm_.exchange({}, receives);
}

void RankGroup::write(const SlotPart& part, const std::byte* from) {
  const std::lock_guard lock(command_mutex_);
  send({Kind::kWrite, part.slot, part.states ? 1 : 0, 0, part.first, part.count});
  std::vector<comm::Send> sends;
  for (int r = 1; r < count(); ++r) {
    sends.push_back({r, from, bytes_of_rank(r, part)});
    if (!replicas_) from += sends.back().bytes;
  }
  comm_.exchange(sends, {});
}

// Without commands no rank would notice that another is gone, nor distinguish an idle rank 0 from one that
// hangs.
void RankGroup::send_heartbeats() {
  const auto pause = std::chrono::duration<double>(std::min(comm_.timeout() / 4, 5.0));
  std::unique_lock ending(ending_mutex_);
  while (!ending_changed_.wait_for(ending, pause, [&] { return ending_; })) {
    const std::unique_lock command(command_mutex_, std::try_to_lock);
    if (!command.owns_lock()) continue;  // a command runs: it notices
    try {
      send({Kind::kPing});
      std::vector<std::byte> answers(static_cast<std::size_t>(count()));
      std::vector<comm::Receive> receives;
      for (int r = 1; r < count(); ++r) receives.push_back({r, &answers[static_cast<std::size_t>(r)], 1});
      comm_.exchange({}, receives, comm_.timeout() - pause.count());
    } catch (const Error&) {  // the communicator keeps it for the next call and for failure()
      return;
    }
  }
}

void RankGroup::follow(const Command& command, Follower& follower) {
  std::vector<std::byte> message(command.bytes);
  const comm::Receive receive{0, message.data(), message.size()};
  if (!message.empty()) comm_.exchange({}, std::span(&receive, 1));
  const SlotPart part{command.slot, command.flag != 0, command.first, command.count};
  const std::uint64_t bytes = bytes_of_rank(rank(), part);
  switch (command.kind) {
    case Kind::kEnd:
      return;
    case Kind::kPing: {
      const std::byte here{1};
      const comm::Send answer{0, &here, 1};
      return comm_.exchange(std::span(&answer, 1), {});
    }
    case Kind::kRun:
      return follower.run(unpack_chunks(message), command.flag != 0);
    case Kind::kStartLoop:
      return follower.start_loop(unpack_starts(message), command.flag != 0);
    case Kind::kLaunchLoop:
      return follower.launch_loop();
    case Kind::kClear:
      return follower.clear(command.slot);
    case Kind::kRead: {
      std::vector<std::byte> state(bytes);
      follower.read(part, state.data());
      const comm::Send answer{0, state.data(), state.size()};
      return comm_.exchange(std::span(&answer, 1), {});
    }
    case Kind::kWrite: {
      std::vector<std::byte> state(bytes);
      const comm::Receive content{0, state.data(), state.size()};
      comm_.exchange({}, std::span(&content, 1));
      return follower.write(part, state.data());
    }
  }
}

void RankGroup::follow(Follower& follower) {
  while (true) {
    Command command;
    comm_.broadcast(&command, sizeof command);
    try {
      const RankedDevice::Working working(command.kind == Kind::kPing ? nullptr : device_);
      follow(command, follower);
    } catch (const std::exception& error) {
      comm_.fail("rank " + std::to_string(rank()) + ": " + error.what());
      throw;
    }
    if (command.kind == Kind::kEnd) return comm_.finish();
  }
}

}  // namespace thalweg::decode
