#include "engine/disk_entry.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "decode/checksum.h"
#include "io/atomic_file.h"

namespace thalweg::engine {
namespace {

constexpr std::array<char, 8> kMagic = {'T', 'H', 'A', 'L', 'P', 'R', 'E', '\n'};
// To be raised when the format changes, or the bits that a text leaves in a model.
constexpr std::uint64_t kVersion = 2;

struct Header {
  std::array<char, 8> magic = kMagic;
  std::uint64_t version = kVersion;
  EntryShape shape;
  std::uint64_t before = 0;
  std::uint64_t first = 0;
  std::uint64_t tokens = 0;
};
static_assert(sizeof(Header) == 64, "a header without padding: it is written as it lies in memory");

std::uint64_t checksum_of(const HostBytes& memory, std::uint64_t bytes) {
  decode::Checksum sum;
  sum.add(std::span(memory.get(), static_cast<std::size_t>(bytes)));
  return sum.value();
}

std::uint64_t head_bytes_of(std::uint64_t tokens, std::uint64_t blocks) {
  return sizeof(Header) + tokens * sizeof(std::int32_t) +
         (blocks + 2) * sizeof(std::uint64_t);  // of blocks, checkpoint and head
}

bool read(std::ifstream& file, void* to, std::uint64_t bytes) {
  file.read(static_cast<char*>(to), static_cast<std::streamsize>(bytes));
  return file.good();
}

std::uint64_t checksum_of(const Header& header, const DiskEntry& entry) {
  decode::Checksum sum;
  sum.add_value(header);
  sum.add(std::as_bytes(std::span(entry.tokens)));
  sum.add(std::as_bytes(std::span(entry.checksums)));
  return sum.value();
}

bool is_same(const EntryShape& a, const EntryShape& b) {
  return a.model == b.model && a.block_bytes == b.block_bytes && a.checkpoint_bytes == b.checkpoint_bytes;
}

}  // namespace

std::uint64_t hash_block(std::uint64_t before, std::span<const std::int32_t> block) {
  decode::Checksum sum;
  sum.add_value(before);
  sum.add(std::as_bytes(block));
  return sum.value();
}

std::span<const std::int32_t> DiskEntry::block(std::size_t index) const {
  const auto rest = std::span(tokens).subspan(index * kBlock);
  return rest.first(std::min<std::size_t>(rest.size(), kBlock));
}

std::span<const std::int32_t> DiskEntry::short_block() const { return std::span(tokens).last(tokens.size() % kBlock); }

std::uint64_t DiskEntry::head_bytes() const { return head_bytes_of(tokens.size(), blocks()); }

std::uint64_t DiskEntry::bytes(const EntryShape& shape) const {
  return head_bytes() + blocks() * shape.block_bytes + shape.checkpoint_bytes;
}

DiskEntry write_entry(const std::string& path, const EntryShape& shape, DiskEntry entry,
                      const Prefix<HostBytes>& prefix) {
  const std::span own = std::span(prefix.blocks).subspan(static_cast<std::size_t>(entry.first));
  entry.checksums.clear();
  for (const HostBytes& block : own) entry.checksums.push_back(checksum_of(block, shape.block_bytes));
  entry.checksums.push_back(checksum_of(prefix.checkpoint, shape.checkpoint_bytes));

  Header header;
  header.shape = shape;
  header.before = entry.before;
  header.first = entry.first;
  header.tokens = entry.tokens.size();
  const std::uint64_t sum = checksum_of(header, entry);
  // Only the owner may read the text of an entry.
  io::AtomicFile file(path, 0600);
  file.write(&header, sizeof header);
  file.write(entry.tokens.data(), entry.tokens.size() * sizeof(std::int32_t));
  file.write(entry.checksums.data(), entry.checksums.size() * sizeof(std::uint64_t));
  file.write(&sum, sizeof sum);
  for (const HostBytes& block : own) file.write(block.get(), static_cast<std::size_t>(shape.block_bytes));
  file.write(prefix.checkpoint.get(), static_cast<std::size_t>(shape.checkpoint_bytes));
  file.commit();
  return entry;
}

EntryState read_entry(const std::string& path, const EntryShape& shape, DiskEntry& entry) {
  std::error_code error;
  const std::uint64_t bytes = std::filesystem::file_size(path, error);
  std::ifstream file(path, std::ios::binary);
  Header header;
  if (error || !read(file, &header, sizeof header) || header.magic != kMagic) return EntryState::kDamaged;
  if (header.version != kVersion) return EntryState::kOfAnotherVersion;
  if (!is_same(header.shape, shape)) return EntryState::kOfAnotherModel;
  // The number of tokens is not to be trusted yet: it must fit the file before memory is taken for it.
  if (header.tokens > bytes || head_bytes_of(header.tokens, 0) > bytes) return EntryState::kDamaged;
  entry.before = header.before;
  entry.first = header.first;
  entry.tokens.resize(static_cast<std::size_t>(header.tokens));
  entry.checksums.resize(entry.blocks() + 1);
  std::uint64_t sum = 0;
  const bool whole = read(file, entry.tokens.data(), entry.tokens.size() * sizeof(std::int32_t)) &&
                     read(file, entry.checksums.data(), entry.checksums.size() * sizeof(std::uint64_t)) &&
                     read(file, &sum, sizeof sum);
  if (!whole || sum != checksum_of(header, entry) || bytes != entry.bytes(shape)) return EntryState::kDamaged;
  return EntryState::kValid;
}

HostBytes read_part(const std::string& path, const EntryShape& shape, const DiskEntry& entry, std::size_t index) {
  const std::uint64_t bytes = index < entry.blocks() ? shape.block_bytes : shape.checkpoint_bytes;
  std::ifstream file(path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(entry.head_bytes() + index * shape.block_bytes));
  std::shared_ptr<std::byte[]> part(new std::byte[static_cast<std::size_t>(bytes)]);
  if (!read(file, part.get(), bytes) || checksum_of(part, bytes) != entry.checksums[index]) return nullptr;
  return part;
}

}  // namespace thalweg::engine
