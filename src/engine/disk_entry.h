#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/prefix_cache.h"

namespace thalweg::engine {

// Of a text, block by block: hash_block(... hash_block(key of the model, block 0) ..., last block).
std::uint64_t hash_block(std::uint64_t before, std::span<const std::int32_t> block);

// What all entries of a model have in common.
struct EntryShape {
  std::uint64_t model = 0;  // ModelSlots::key()
  std::uint64_t block_bytes = 0;
  std::uint64_t checkpoint_bytes = 0;
};

// A file of DiskCache: the checkpoint after a text, and the last of the text's blocks; those before lie in other files.
// The last of all may be short (PrefixCache), and takes as many bytes as the others.
struct DiskEntry {
  std::uint64_t before = 0;  // hash of the text before `tokens`
  std::uint64_t first = 0;   // blocks before `tokens`
  std::vector<std::int32_t> tokens;
  std::vector<std::uint64_t> checksums;  // of each block of `tokens`, and of the checkpoint

  std::size_t blocks() const { return (tokens.size() + kBlock - 1) / kBlock; }
  // The tokens of one of them, or of a short last one; empty if it has no short one.
  std::span<const std::int32_t> block(std::size_t index) const;
  std::span<const std::int32_t> short_block() const;
  std::uint64_t head_bytes() const;
  std::uint64_t bytes(const EntryShape& shape) const;  // of the file
};

// Little-endian: a header, DiskEntry, a checksum of both; then the blocks and the checkpoint. Written whole or not at
// all. `prefix` is of the whole text. Returns the entry with its checksums. Throws Error.
DiskEntry write_entry(const std::string& path, const EntryShape& shape, DiskEntry entry,
                      const Prefix<HostBytes>& prefix);

enum class EntryState : std::uint8_t { kValid, kDamaged, kOfAnotherModel, kOfAnotherVersion };
// Everything but the blocks and the checkpoint, and whether the file is long enough for these.
EntryState read_entry(const std::string& path, const EntryShape& shape, DiskEntry& entry);

// A block of the file's, or the checkpoint for index entry.blocks(); null if it cannot be read or is damaged.
HostBytes read_part(const std::string& path, const EntryShape& shape, const DiskEntry& entry, std::size_t index);

}  // namespace thalweg::engine
