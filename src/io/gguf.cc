#include "io/gguf.h"

#include <cstdio>
#include <filesystem>

#include "io/printable.h"
#include "thalweg/error.h"

namespace thalweg::io {
namespace {

constexpr std::int64_t kMaxParts = 99999;  // five digits in the name

// "-00002-of-00003.gguf" for shard 1 of 3.
std::string shard_suffix(std::int64_t shard, std::int64_t count) {
  char text[64];
  std::snprintf(text, sizeof(text), "-%05d-of-%05d.gguf", static_cast<int>(shard) + 1, static_cast<int>(count));
  return text;
}

std::int64_t num_parts(const std::string& path, const GgufMetadata& metadata) {
  const std::int64_t count = metadata.integer("split.count", std::int64_t{1});
  if (count < 0 || count > kMaxParts) {
    throw Error(path, "key split.count", "0 to " + std::to_string(kMaxParts), std::to_string(count));
  }
  return count;
}

// The name of a split model without a shard's suffix.
std::string find_prefix(const std::string& path, const GgufMetadata& metadata, std::int64_t count) {
  const std::int64_t shard = metadata.integer("split.no");
  if (shard < 0 || shard >= count) {
    throw Error(path, "key split.no", "0 to " + std::to_string(count - 1), std::to_string(shard));
  }
  const std::string suffix = shard_suffix(shard, count);
  if (!path.ends_with(suffix)) {
    throw Error(path, "file", "a name that ends in " + suffix + ", for the other parts to be found",
                std::filesystem::path(path).filename().string());
  }
  return path.substr(0, path.size() - suffix.size());
}

void expect_integer(const std::string& path, const GgufMetadata& metadata, const char* key, std::int64_t expected) {
  const std::int64_t given = metadata.integer(key);
  if (given != expected) {
    throw Error(path, std::string("key ") + key, std::to_string(expected), std::to_string(given));
  }
}

}  // namespace

GgufFile::GgufFile(const std::string& path) {
  std::vector<GgufHeader> headers;
  const auto open = [&](const std::string& shard_path) {
    files_.emplace_back(shard_path);
    headers.push_back(parse_gguf(files_.back().bytes(), shard_path));
  };
  open(path);
  const std::int64_t count = num_parts(path, headers[0].metadata);
  if (count > 1) {
    const std::string prefix = find_prefix(path, headers[0].metadata, count);
    files_.clear();
    headers.clear();
    for (std::int64_t i = 0; i < count; ++i) open(prefix + shard_suffix(i, count));
    std::int64_t total = 0;
    for (const GgufHeader& header : headers) total += static_cast<std::int64_t>(header.tensors.size());
    for (std::size_t i = 0; i < headers.size(); ++i) {
      expect_integer(files_[i].path(), headers[i].metadata, "split.no", static_cast<std::int64_t>(i));
      expect_integer(files_[i].path(), headers[i].metadata, "split.count", count);
      expect_integer(files_[i].path(), headers[i].metadata, "split.tensors.count", total);
      const std::string first = headers[0].metadata.string("general.architecture", "");
      const std::string here = headers[i].metadata.string("general.architecture", first);
      if (here != first) throw Error(files_[i].path(), "key general.architecture", printable(first), printable(here));
    }
  }
  version_ = headers[0].version;
  alignment_ = headers[0].alignment;
  metadata_ = std::move(headers[0].metadata);
  for (std::size_t i = 0; i < headers.size(); ++i) {
    for (GgufTensor& tensor : headers[i].tensors) {
      tensor.shard = i;
      if (!index_.emplace(tensor.name, tensors_.size()).second) {
        throw Error(files_[i].path(), "tensor " + printable(tensor.name), "each tensor in one shard", "it in two");
      }
      tensors_.push_back(std::move(tensor));
    }
  }
}

std::vector<std::string> GgufFile::paths() const {
  std::vector<std::string> paths;
  for (const MappedFile& shard : files_) paths.push_back(shard.path());
  return paths;
}

bool GgufFile::has(std::string_view name) const { return index_.find(name) != index_.end(); }

ConstTensor GgufFile::tensor(std::string_view name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) {
    throw Error(files_[0].path(), "tensor " + printable(name), "it in the file",
                "none of that name among " + std::to_string(tensors_.size()));
  }
  const GgufTensor& info = tensors_[found->second];
  const MappedFile& shard = files_[info.shard];
  if (!info.type.dtype) {
    throw Error(shard.path(), "tensor " + printable(name), "a type that is supported",
                info.type.name + " (number " + std::to_string(info.type.number) + ")");
  }
  return contiguous_view(shard.bytes().data() + info.offset, *info.type.dtype, info.shape);
}

std::vector<std::string> GgufFile::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const GgufTensor& tensor : tensors_) names.push_back(tensor.name);
  return names;
}

std::uint64_t GgufFile::bytes() const {
  std::uint64_t sum = 0;
  for (const GgufTensor& tensor : tensors_) sum += tensor.bytes;
  return sum;
}

void GgufFile::require_intact() const { io::require_intact(files_); }
void GgufFile::prefetch(std::function<void(double done)> progress) const { prefetch_files(files_, progress); }

}  // namespace thalweg::io
