#include "io/gguf_writer.h"

#include <algorithm>
#include <limits>
#include <type_traits>
#include <utility>

#include "io/ggml_type.h"
#include "io/gguf.h"
#include "io/printable.h"
#include "thalweg/error.h"

namespace thalweg::io {
namespace {

constexpr std::uint64_t kAlignment = kGgufDefaultAlignment;
constexpr std::size_t kLongestName = 63;

std::uint64_t align(std::uint64_t offset) { return (offset + kAlignment - 1) / kAlignment * kAlignment; }

void put_bytes(std::string& out, const void* data, std::size_t bytes) {
  out.append(static_cast<const char*>(data), bytes);
}

template <class T>
void put(std::string& out, const T& value) {
  if constexpr (std::is_same_v<T, bool>) {
    out += value ? '\1' : '\0';
  } else if constexpr (std::is_same_v<T, std::string>) {
    put(out, std::uint64_t{value.size()});
    out += value;
  } else if constexpr (std::is_same_v<T, GgufArray>) {
    put(out, static_cast<std::uint32_t>(value.type()));
    put(out, std::uint64_t{value.size()});
    std::visit(
        [&](const auto& list) {
          using Element = typename std::decay_t<decltype(list)>::value_type;
          if constexpr (std::is_arithmetic_v<Element> && !std::is_same_v<Element, bool>) {
            put_bytes(out, list.data(), list.size() * sizeof(Element));
          } else {
            for (const Element& element : list) put(out, element);
          }
        },
        value.elements);
  } else {
    put_bytes(out, &value, sizeof(value));
  }
}

GgufMetadata without_layout(const GgufMetadata& metadata) {
  GgufMetadata kept;
  for (const auto& [key, value] : metadata.entries()) {
    if (key != "general.alignment" && !key.starts_with("split.")) kept.add(key, value);
  }
  return kept;
}

}  // namespace

GgufWriter::GgufWriter(std::string path, const GgufMetadata& metadata, Progress progress)
    : file_(std::move(path)), metadata_(without_layout(metadata)), progress_(std::move(progress)) {}

void GgufWriter::fail(std::string_view name, std::string_view expected, std::string_view given) const {
  throw Error(file_.path(), "tensor " + printable(name), expected, given);
}

void GgufWriter::declare(std::string name, DType dtype, std::vector<std::int64_t> shape) {
  if (header_written_) fail(name, "declarations before the first data", "one after it");
  if (name.empty() || name.size() > kLongestName) {
    fail(name, "a name of 1 to " + std::to_string(kLongestName) + " bytes", std::to_string(name.size()) + " bytes");
  }
  if (shape.empty() || shape.size() > kGgufMaxRank) {
    fail(name, "1 to " + std::to_string(kGgufMaxRank) + " dimensions", std::to_string(shape.size()));
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max() / 64;  // far from every overflow below
  std::int64_t count = 1;
  bool empty = false;
  for (const std::int64_t extent : shape) {
    if (extent < 0) fail(name, "extents of at least 0", std::to_string(extent));
    if (extent > kMost / count) fail(name, "at most 2^57 elements", "more");
    empty |= extent == 0;
    count *= std::max<std::int64_t>(extent, 1);
  }
  const DTypeInfo info = dtype_info(dtype);
  if (shape.back() % info.block_size != 0) {
    fail(name, "rows of a multiple of " + std::to_string(info.block_size) + " for " + std::string(info.name),
         "rows of " + std::to_string(shape.back()));
  }
  const auto bytes = empty ? 0 : static_cast<std::uint64_t>(bytes_of(dtype, count));
  if (bytes > std::numeric_limits<std::uint64_t>::max() / 4 - end_) fail(name, "a file of at most 2^62 bytes", "more");
  if (!names_.insert(name).second) fail(name, "each tensor once", "it twice");
  tensors_.push_back({std::move(name), dtype, std::move(shape), bytes, end_});
  end_ = align(end_ + bytes);
  total_ += bytes;
}

void GgufWriter::write_header() {
  std::string out = "GGUF";
  put(out, std::uint32_t{3});
  put(out, std::uint64_t{tensors_.size()});
  put(out, std::uint64_t{metadata_.entries().size()});
  for (const auto& [key, value] : metadata_.entries()) {
    put(out, key);
    put(out, static_cast<std::uint32_t>(gguf_type(value)));
    std::visit([&](const auto& held) { put(out, held); }, value);
  }
  for (const Declared& tensor : tensors_) {
    put(out, tensor.name);
    put(out, static_cast<std::uint32_t>(tensor.shape.size()));
    for (auto extent = tensor.shape.rbegin(); extent != tensor.shape.rend(); ++extent) put(out, *extent);
    put(out, ggml_type_number(tensor.dtype));
    put(out, tensor.offset);
  }
  file_.write(out.data(), out.size());
  pad();
  header_written_ = true;
  skip_complete();
}

void GgufWriter::pad() {
  constexpr char kZeros[kAlignment] = {};
  file_.write(kZeros, static_cast<std::size_t>(align(file_.size()) - file_.size()));
}

void GgufWriter::skip_complete() {
  while (current_ < tensors_.size() && current_done_ == tensors_[current_].bytes) {
    pad();
    ++current_;
    current_done_ = 0;
  }
}

void GgufWriter::write(std::string_view name, const void* data, std::size_t bytes) {
  const auto declared = names_.find(name);
  if (declared == names_.end()) fail(name, "a tensor that was declared", "another");
  if (!header_written_) write_header();
  if (bytes == 0) return;
  if (current_ == tensors_.size() || tensors_[current_].name != name) {
    fail(
        name, "data in the order of declaration",
        current_ == tensors_.size() ? "more of it when all is written" : "it before all of " + tensors_[current_].name);
  }
  const std::uint64_t left = tensors_[current_].bytes - current_done_;
  if (bytes > left) {
    fail(name, std::to_string(tensors_[current_].bytes) + " bytes in all",
         std::to_string(bytes - left) + " more than that");
  }
  file_.write(data, bytes);
  current_done_ += bytes;
  done_ += bytes;
  skip_complete();
  if (progress_ && done_ < total_) progress_(static_cast<double>(done_) / static_cast<double>(total_));
}

void GgufWriter::finish() {
  if (!header_written_) write_header();
  if (current_ < tensors_.size()) {
    fail(tensors_[current_].name, std::to_string(tensors_[current_].bytes) + " bytes", std::to_string(current_done_));
  }
  file_.commit();
  if (progress_) progress_(1.0);
}

}  // namespace thalweg::io
