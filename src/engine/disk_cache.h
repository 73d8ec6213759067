#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "engine/disk_entry.h"
#include "engine/prefix_cache.h"
#include "io/file_lock.h"

namespace thalweg::engine {

// What a prefix cache holds, in a folder, so that it outlives the process: a file for each checkpoint, with the blocks
// between it and the one before. A thread of its own reads and writes. A file is there whole or not at all, whenever
// the process is killed; what is read is compared with checksums and with the text, and what does not match is removed.
//
// The budget is bytes of the files. Those of other models leave first, then those used longest ago that no other goes
// on from.
class DiskCache {
 public:
  // Makes the folder if there is none, and keeps other processes from it. Throws Error.
  DiskCache(std::string folder, const EntryShape& shape, std::uint64_t budget);
  // Finishes what is to be written.
  ~DiskCache();
  DiskCache(const DiskCache&) = delete;
  DiskCache& operator=(const DiskCache&) = delete;

  // The longest kept beginning of the text, in tokens.
  std::int64_t find(std::span<const std::int32_t> text) const;

  // Reads the beginning of so many tokens; empty if it is damaged or was dropped.
  using Loaded = std::future<std::optional<Prefix<HostBytes>>>;
  Loaded load(std::span<const std::int32_t> text, std::int64_t tokens);

  // Writes the checkpoint after a text, and those of its blocks that no file has. Left out while too much is waiting.
  void store(std::span<const std::int32_t> text, Prefix<HostBytes> prefix);

  // Waits until everything so far is written.
  void flush();

  struct Stats {
    std::uint64_t bytes = 0;
    std::uint64_t checkpoints = 0;
    std::uint64_t evictions = 0;
    std::uint64_t failures = 0;  // files that could not be written, or were damaged
  };
  Stats stats() const;

 private:
  using Hash = std::uint64_t;
  struct Entry {
    DiskEntry file;
    Hash parent = 0;  // the entry that has the block before the first; 0: none
    int children = 0;
    std::uint64_t last_use = 0;
  };
  struct Other {  // a file of another model
    std::string path;
    std::uint64_t bytes = 0;
  };

  std::string path_of(Hash hash) const;
  // After each block, the last of which may be short.
  std::vector<Hash> hashes_of(std::span<const std::int32_t> text) const;
  void read_folder();
  void enter(Hash hash, DiskEntry file);
  std::size_t longest_short_block(Hash before, std::span<const std::int32_t> rest) const;

  void work();
  void add_job(std::function<void()> job, bool first);
  std::optional<Prefix<HostBytes>> read(std::span<const std::int32_t> text);
  HostBytes read_block(std::span<const std::int32_t> text, std::size_t block, Hash hash);
  void write(std::span<const std::int32_t> text, const Prefix<HostBytes>& prefix);
  void forget_other(const std::string& path);
  bool make_room(std::uint64_t bytes);
  bool evict_one();
  void remove(Hash hash);
  void remove_damaged(Hash hash);
  void touch(Hash hash);

  const std::string folder_;
  const EntryShape shape_;
  const std::uint64_t budget_;
  std::unique_ptr<io::FileLock> lock_;

  mutable std::mutex mutex_;                   // of everything below; the index is changed by the thread alone
  std::unordered_map<Hash, Entry> entries_;    // by the hash of the text that ends with the checkpoint
  std::unordered_map<Hash, Hash> owners_;      // the entry that has the last block of a text
  std::unordered_multimap<Hash, Hash> short_;  // entries that end with a short block, by the hash of the text before it
  std::vector<Other> others_;                  // oldest last
  Stats stats_;
  std::uint64_t uses_ = 0;
  std::deque<std::function<void()>> jobs_;
  std::uint64_t waiting_bytes_ = 0;  // of prefixes to be written
  bool working_ = false;
  bool stopping_ = false;
  std::condition_variable wake_;
  std::condition_variable idle_;
  std::thread thread_;
};

}  // namespace thalweg::engine
