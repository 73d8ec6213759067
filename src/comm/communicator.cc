#include "comm/communicator.h"

#include <cstring>
#include <utility>

#include "core/float16.h"

namespace thalweg::comm {
namespace {

// Sums of at most so many bytes are made by every rank from all ranks' data, in one round of messages instead of two.
constexpr std::size_t kOneRoundBytes = std::size_t{32} << 10;

// sum[count] of rows that lie `stride` bytes apart, in order; `own` takes the place of row `rank`.
void sum_rows(const std::byte* rows, std::size_t stride, int size, int rank, const std::byte* own, DType dtype,
              std::int64_t count, std::byte* sum) {
  const auto element = [dtype](const std::byte* row, std::int64_t i) {
    if (dtype == DType::kF32) {
      float value;
      std::memcpy(&value, row + i * 4, sizeof(value));
      return value;
    }
    std::uint16_t value;
    std::memcpy(&value, row + i * 2, sizeof(value));
    return bf16_to_f32(value);
  };
  const auto row_of = [&](int r) { return r == rank ? own : rows + stride * static_cast<std::size_t>(r); };
  for (std::int64_t i = 0; i < count; ++i) {
    float total = element(row_of(0), i);
    for (int r = 1; r < size; ++r) total += element(row_of(r), i);
    if (dtype == DType::kF32) {
      std::memcpy(sum + i * 4, &total, sizeof(total));
    } else {
      const std::uint16_t rounded = f32_to_bf16(total);
      std::memcpy(sum + i * 2, &rounded, sizeof(rounded));
    }
  }
}

std::size_t size_in_bytes(DType dtype, std::int64_t count) { return static_cast<std::size_t>(bytes_of(dtype, count)); }

}  // namespace

Communicator::Communicator(int rank, int size, double timeout, std::unique_ptr<Transport> transport)
    : rank_(rank), size_(size), timeout_(timeout), transport_(std::move(transport)) {}

void Communicator::require_whole() const {
  const std::string why = failure();
  if (!why.empty()) throw Error("ranks", "state", "ranks that run together", "an earlier failure: " + why);
}

std::string Communicator::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

int Communicator::ended_rank() const {
  const std::lock_guard lock(mutex_);
  return failure_.empty() ? transport_->ended_rank() : -1;
}

void Communicator::fail(const std::string& why) noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) return;
  failure_ = why;
  if (transport_ != nullptr) transport_->abandon();
}

void Communicator::exchange(std::span<const Send> sends, std::span<const Receive> receives, double timeout) {
  require_whole();
  try {
    transport_->exchange(sends, receives, timeout);
  } catch (const Error& error) {
    fail(error.what());
    throw;
  }
}

void Communicator::all_gather(const void* from, void* to, std::size_t bytes) {
  auto* rows = static_cast<std::byte*>(to);
  sends_.clear();
  receives_.clear();
  for (int r = 0; r < size_; ++r) {
    std::byte* row = rows + bytes * static_cast<std::size_t>(r);
    if (r == rank_) {
      if (row != from && bytes > 0) std::memcpy(row, from, bytes);
    } else {
      sends_.push_back({r, from, bytes});
      receives_.push_back({r, row, bytes});
    }
  }
  exchange(sends_, receives_);
}

void Communicator::all_to_all(const void* from, void* to, std::size_t bytes) {
  const auto* rows = static_cast<const std::byte*>(from);
  auto* results = static_cast<std::byte*>(to);
  sends_.clear();
  receives_.clear();
  for (int r = 0; r < size_; ++r) {
    const std::size_t offset = bytes * static_cast<std::size_t>(r);
    if (r == rank_) {
      if (bytes > 0) std::memcpy(results + offset, rows + offset, bytes);
    } else {
      sends_.push_back({r, rows + offset, bytes});
      receives_.push_back({r, results + offset, bytes});
    }
  }
  exchange(sends_, receives_);
}

void Communicator::reduce_scatter(const void* from, void* to, DType dtype, std::int64_t count) {
  const std::size_t bytes = size_in_bytes(dtype, count);
  received_.resize(bytes * static_cast<std::size_t>(size_));
  all_to_all(from, received_.data(), bytes);
  sum_rows(received_.data(), bytes, size_, rank_, received_.data() + bytes * static_cast<std::size_t>(rank_), dtype,
           count, static_cast<std::byte*>(to));
}

void Communicator::all_reduce(void* data, DType dtype, std::int64_t count) {
  if (size_ == 1 || count == 0) return;
  auto* values = static_cast<std::byte*>(data);
  const std::size_t bytes = size_in_bytes(dtype, count);
  if (bytes <= kOneRoundBytes) {
    received_.resize(bytes * static_cast<std::size_t>(size_));
    all_gather(values, received_.data(), bytes);
    sum_rows(received_.data(), bytes, size_, rank_, values, dtype, count, values);
    return;
  }
  // Each rank sums up its range of the elements, and gives the sums to the others: 2 (size - 1) / size of the data go
  // out of each rank, and as much comes in.
  const auto offset = [&](int r) { return size_in_bytes(dtype, cut(count, r)); };
  const std::size_t mine = offset(rank_ + 1) - offset(rank_);
  received_.resize(mine * static_cast<std::size_t>(size_));
  sends_.clear();
  receives_.clear();
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    sends_.push_back({r, values + offset(r), offset(r + 1) - offset(r)});
    receives_.push_back({r, received_.data() + mine * static_cast<std::size_t>(r), mine});
  }
  exchange(sends_, receives_);
  sum_rows(received_.data(), mine, size_, rank_, values + offset(rank_), dtype,
           cut(count, rank_ + 1) - cut(count, rank_), values + offset(rank_));
  sends_.clear();
  receives_.clear();
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    sends_.push_back({r, values + offset(rank_), mine});
    receives_.push_back({r, values + offset(r), offset(r + 1) - offset(r)});
  }
  exchange(sends_, receives_);
}

void Communicator::broadcast(void* data, std::size_t bytes, int root) {
  sends_.clear();
  receives_.clear();
  if (rank_ != root) {
    receives_.push_back({root, data, bytes});
  } else {
    for (int r = 0; r < size_; ++r) {
      if (r != root) sends_.push_back({r, data, bytes});
    }
  }
  exchange(sends_, receives_);
}

void Communicator::barrier(double timeout) {
  const std::byte here{1};
  std::vector<std::byte> there(static_cast<std::size_t>(size_));
  sends_.clear();
  receives_.clear();
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    sends_.push_back({r, &here, 1});
    receives_.push_back({r, &there[static_cast<std::size_t>(r)], 1});
  }
  exchange(sends_, receives_, timeout);
}

}  // namespace thalweg::comm
