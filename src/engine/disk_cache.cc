#include "engine/disk_cache.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <system_error>
#include <utility>

#include "thalweg/error.h"

namespace thalweg::engine {
namespace {

namespace fs = std::filesystem;

constexpr auto kBlockSize = static_cast<std::size_t>(kBlock);
constexpr std::string_view kSuffix = ".prefix";
// Prefixes that wait to be written keep their memory.
constexpr std::uint64_t kMostWaitingBytes = std::uint64_t{512} << 20;

std::string hex(std::uint64_t value) {
  std::string text;
  for (int shift = 60; shift >= 0; shift -= 4) text += "0123456789abcdef"[value >> shift & 15U];
  return text;
}

std::size_t blocks_of(std::span<const std::int32_t> text) { return (text.size() + kBlockSize - 1) / kBlockSize; }

std::span<const std::int32_t> block_of(std::span<const std::int32_t> text, std::size_t block) {
  return text.subspan(block * kBlockSize, std::min(text.size() - block * kBlockSize, kBlockSize));
}

bool begins_with(std::span<const std::int32_t> text, std::span<const std::int32_t> beginning) {
  return beginning.size() <= text.size() && std::equal(beginning.begin(), beginning.end(), text.begin());
}

// The text's hash before the short block at the file's end.
std::uint64_t hash_before_short_block(const DiskEntry& file) {
  std::uint64_t hash = file.before;
  for (std::size_t i = 0; i + 1 < file.blocks(); ++i) hash = hash_block(hash, file.block(i));
  return hash;
}

struct Found {
  std::string path;
  fs::file_time_type time;
  std::uint64_t hash = 0;
  DiskEntry file;
};

// Files of a killed process that are not whole; nobody else's, since the folder is locked.
bool is_leftover(const std::string& name) { return name.find(std::string(kSuffix) + ".partial-") != std::string::npos; }

}  // namespace

DiskCache::DiskCache(std::string folder, const EntryShape& shape, std::uint64_t budget)
    : folder_(std::move(folder)), shape_(shape), budget_(budget) {
  std::error_code error;
  const bool created = fs::create_directories(folder_, error);
  if (error || !fs::is_directory(folder_, error)) {
    throw Error("Engine", "cache_dir", "a folder", folder_ + (error ? ": " + error.message() : ", which is none"));
  }
  if (created) fs::permissions(folder_, fs::perms::owner_all, error);
  lock_ = std::make_unique<io::FileLock>(folder_ + "/cache");
  read_folder();
  thread_ = std::thread([this] { work(); });
}

DiskCache::~DiskCache() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

std::string DiskCache::path_of(Hash hash) const { return folder_ + "/" + hex(hash) + std::string(kSuffix); }

std::vector<DiskCache::Hash> DiskCache::hashes_of(std::span<const std::int32_t> text) const {
  std::vector<Hash> hashes;
  Hash hash = shape_.model;
  for (std::size_t i = 0; i < blocks_of(text); ++i) {
    hash = hash_block(hash, block_of(text, i));
    hashes.push_back(hash);
  }
  return hashes;
}

void DiskCache::read_folder() {
  std::vector<Found> found;
  std::vector<std::pair<fs::file_time_type, Other>> others;
  std::error_code error;
  fs::directory_iterator items(folder_, error);
  if (error) throw Error("Engine", "cache_dir", "a folder that can be read", folder_ + ": " + error.message());
  for (const fs::directory_entry& item : items) {
    Found one{item.path().string(), fs::last_write_time(item.path(), error), shape_.model, {}};
    if (is_leftover(item.path().filename().string())) fs::remove(item.path(), error);
    if (item.path().extension() != kSuffix) continue;
    switch (read_entry(one.path, shape_, one.file)) {
      case EntryState::kValid:
        found.push_back(std::move(one));
        break;
      case EntryState::kOfAnotherModel:
        others.push_back({one.time, {one.path, fs::file_size(item.path(), error)}});
        stats_.bytes += others.back().second.bytes;
        break;
      case EntryState::kOfAnotherVersion:
        fs::remove(item.path(), error);
        break;
      case EntryState::kDamaged:
        fs::remove(item.path(), error);
        ++stats_.failures;
    }
  }
  std::sort(others.begin(), others.end(), [](const auto& a, const auto& b) { return a.first > b.first; });
  for (auto& [time, other] : others) others_.push_back(std::move(other));

  // An entry comes after the one that it goes on from, which begins earlier.
  std::sort(found.begin(), found.end(), [](const Found& a, const Found& b) { return a.file.first < b.file.first; });
  std::vector<std::pair<fs::file_time_type, Hash>> uses;
  for (Found& one : found) {
    Hash hash = one.file.before;
    for (std::size_t i = 0; i < one.file.blocks(); ++i) hash = hash_block(hash, one.file.block(i));
    const bool begins = one.file.first == 0 && one.file.before == shape_.model;
    if (path_of(hash) != one.path || (!begins && !owners_.contains(one.file.before))) {
      fs::remove(one.path, error);
      continue;
    }
    uses.emplace_back(one.time, hash);
    enter(hash, std::move(one.file));
  }
  std::sort(uses.begin(), uses.end());
  for (const auto& [time, hash] : uses) entries_[hash].last_use = ++uses_;
  while (stats_.bytes > budget_ && evict_one()) {
  }
}

void DiskCache::enter(Hash hash, DiskEntry file) {
  Entry entry;
  if (file.first > 0) {
    entry.parent = owners_.at(file.before);
    ++entries_.at(entry.parent).children;
  }
  Hash at = file.before;
  for (std::size_t i = 0; i < file.blocks(); ++i) {
    at = hash_block(at, file.block(i));
    owners_.emplace(at, hash);
  }
  if (!file.short_block().empty()) short_.emplace(hash_before_short_block(file), hash);
  stats_.bytes += file.bytes(shape_);
  entry.file = std::move(file);
  entry.last_use = ++uses_;
  entries_.emplace(hash, std::move(entry));
}

std::int64_t DiskCache::find(std::span<const std::int32_t> text) const {
  const std::vector<Hash> hashes = hashes_of(text);
  const std::lock_guard lock(mutex_);
  std::size_t tokens = 0;
  Hash before = shape_.model;
  for (std::size_t i = 0; true; ++i) {
    const auto rest = text.subspan(i * kBlockSize);
    if (const std::size_t found = longest_short_block(before, rest)) tokens = i * kBlockSize + found;
    if (rest.size() < kBlockSize || !owners_.contains(hashes[i])) break;
    before = hashes[i];
    if (entries_.contains(before)) tokens = (i + 1) * kBlockSize;
  }
  return static_cast<std::int64_t>(tokens);
}

std::size_t DiskCache::longest_short_block(Hash before, std::span<const std::int32_t> rest) const {
  std::size_t longest = 0;
  for (auto [at, end] = short_.equal_range(before); at != end; ++at) {
    const auto own = entries_.at(at->second).file.short_block();
    if (own.size() > longest && begins_with(rest, own)) longest = own.size();
  }
  return longest;
}

DiskCache::Loaded DiskCache::load(std::span<const std::int32_t> text, std::int64_t tokens) {
  const auto begin = text.first(static_cast<std::size_t>(tokens));
  const auto task = std::make_shared<std::packaged_task<std::optional<Prefix<HostBytes>>()>>(
      [this, own = std::vector(begin.begin(), begin.end())] { return read(own); });
  add_job([task] { (*task)(); }, true);
  return task->get_future();
}

void DiskCache::store(std::span<const std::int32_t> text, Prefix<HostBytes> prefix) {
  const std::uint64_t bytes = prefix.blocks.size() * shape_.block_bytes + shape_.checkpoint_bytes;
  {
    const std::lock_guard lock(mutex_);
    if (waiting_bytes_ > 0 && waiting_bytes_ + bytes > kMostWaitingBytes) return;
    waiting_bytes_ += bytes;
  }
  const auto shared = std::make_shared<Prefix<HostBytes>>(std::move(prefix));
  add_job(
      [this, shared, bytes, own = std::vector(text.begin(), text.end())] {
        write(own, *shared);
        const std::lock_guard lock(mutex_);
        waiting_bytes_ -= bytes;
      },
      false);
}

void DiskCache::add_job(std::function<void()> job, bool first) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.insert(first ? jobs_.begin() : jobs_.end(), std::move(job));
  }
  wake_.notify_all();
}

void DiskCache::work() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return !jobs_.empty() || stopping_; });
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    working_ = true;
    lock.unlock();
    job();
    lock.lock();
    working_ = false;
    if (jobs_.empty()) idle_.notify_all();
  }
}

void DiskCache::flush() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [&] { return jobs_.empty() && !working_; });
}

DiskCache::Stats DiskCache::stats() const {
  const std::lock_guard lock(mutex_);
  Stats stats = stats_;
  stats.checkpoints = entries_.size();
  return stats;
}

// What follows is called by the thread alone, which may therefore read the index without the lock.

std::optional<Prefix<HostBytes>> DiskCache::read(std::span<const std::int32_t> text) {
  const std::vector<Hash> hashes = hashes_of(text);
  Prefix<HostBytes> prefix;
  prefix.tokens = static_cast<std::int64_t>(text.size());
  for (std::size_t i = 0; i < hashes.size(); ++i) {
    HostBytes block = read_block(text, i, hashes[i]);
    if (block == nullptr) return std::nullopt;
    prefix.blocks.push_back(std::move(block));
  }
  const auto last = hashes.empty() ? entries_.end() : entries_.find(hashes.back());
  if (last == entries_.end()) return std::nullopt;
  prefix.checkpoint = read_part(path_of(last->first), shape_, last->second.file, last->second.file.blocks());
  if (prefix.checkpoint == nullptr) {
    remove_damaged(last->first);
    return std::nullopt;
  }
  touch(last->first);
  return prefix;
}

HostBytes DiskCache::read_block(std::span<const std::int32_t> text, std::size_t block, Hash hash) {
  const auto owner = owners_.find(hash);
  if (owner == owners_.end()) return nullptr;
  const Hash key = owner->second;
  const DiskEntry& file = entries_.at(key).file;
  // Equal hashes of different texts are as good as impossible; a state of another text would not be noticed.
  const std::size_t index = block - static_cast<std::size_t>(file.first);
  if (block < file.first || index >= file.blocks()) return nullptr;
  const auto own = file.block(index);
  const auto asked = block_of(text, block);
  if (!std::equal(own.begin(), own.end(), asked.begin(), asked.end())) return nullptr;
  HostBytes memory = read_part(path_of(key), shape_, file, index);
  if (memory == nullptr) remove_damaged(key);
  return memory;
}

void DiskCache::write(std::span<const std::int32_t> text, const Prefix<HostBytes>& prefix) {
  const std::vector<Hash> hashes = hashes_of(text);
  if (hashes.empty()) return;
  if (entries_.contains(hashes.back())) return touch(hashes.back());
  std::size_t known = 0;
  while (known < hashes.size() && owners_.contains(hashes[known])) ++known;
  DiskEntry file;
  file.first = known;
  file.before = known > 0 ? hashes[known - 1] : shape_.model;
  file.tokens.assign(text.begin() + static_cast<std::ptrdiff_t>(known * kBlockSize), text.end());
  // The one that this goes on from stays while room is made.
  Entry* parent = known > 0 ? &entries_.at(owners_.at(file.before)) : nullptr;
  if (parent != nullptr) ++parent->children;
  const bool fits = make_room(file.bytes(shape_));
  if (parent != nullptr) --parent->children;
  if (!fits) return;
  try {
    file = write_entry(path_of(hashes.back()), shape_, std::move(file), prefix);
    const std::lock_guard lock(mutex_);
    forget_other(path_of(hashes.back()));
    enter(hashes.back(), std::move(file));
  } catch (const std::exception&) {  // the disk is full, say: requests run all the same
    const std::lock_guard lock(mutex_);
    ++stats_.failures;
  }
}

// A file that seemed to be another model's, and was replaced by this one's.
void DiskCache::forget_other(const std::string& path) {
  const auto other = std::find_if(others_.begin(), others_.end(), [&](const Other& one) { return one.path == path; });
  if (other == others_.end()) return;
  stats_.bytes -= other->bytes;
  others_.erase(other);
}

bool DiskCache::make_room(std::uint64_t bytes) {
  if (bytes > budget_) return false;
  while (stats_.bytes + bytes > budget_) {
    if (!evict_one()) return false;
  }
  return true;
}

bool DiskCache::evict_one() {
  std::error_code error;
  if (!others_.empty()) {
    const std::lock_guard lock(mutex_);
    fs::remove(others_.back().path, error);
    stats_.bytes -= others_.back().bytes;
    ++stats_.evictions;
    others_.pop_back();
    return true;
  }
  auto least = entries_.end();
  for (auto at = entries_.begin(); at != entries_.end(); ++at) {
    if (at->second.children > 0) continue;
    if (least == entries_.end() || at->second.last_use < least->second.last_use) least = at;
  }
  if (least == entries_.end()) return false;
  const std::lock_guard lock(mutex_);
  ++stats_.evictions;
  remove(least->first);
  return true;
}

// With the lock held.
void DiskCache::remove(Hash hash) {
  const auto entry = entries_.find(hash);
  const DiskEntry& file = entry->second.file;
  if (const auto parent = entries_.find(entry->second.parent); parent != entries_.end()) --parent->second.children;
  Hash at = file.before;
  for (std::size_t i = 0; i < file.blocks(); ++i) {
    at = hash_block(at, file.block(i));
    if (const auto owner = owners_.find(at); owner != owners_.end() && owner->second == hash) owners_.erase(owner);
  }
  if (!file.short_block().empty()) {
    const auto [begin, end] = short_.equal_range(hash_before_short_block(file));
    short_.erase(std::find_if(begin, end, [&](const auto& one) { return one.second == hash; }));
  }
  std::error_code error;
  fs::remove(path_of(hash), error);
  stats_.bytes -= file.bytes(shape_);
  entries_.erase(entry);
}

// And everything that goes on from it.
void DiskCache::remove_damaged(Hash hash) {
  const std::lock_guard lock(mutex_);
  ++stats_.failures;
  std::vector<Hash> doomed = {hash};
  for (std::size_t i = 0; i < doomed.size(); ++i) {
    for (const auto& [key, entry] : entries_) {
      if (entry.parent == doomed[i] && entry.file.first > 0) doomed.push_back(key);
    }
  }
  while (!doomed.empty()) {
    remove(doomed.back());
    doomed.pop_back();
  }
}

void DiskCache::touch(Hash hash) {
  entries_.at(hash).last_use = ++uses_;
  std::error_code error;
  fs::last_write_time(path_of(hash), fs::file_time_type::clock::now(), error);
}

}  // namespace thalweg::engine
