#include "io/safetensors.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "io/atomic_file.h"
#include "io/json_file.h"
#include "io/printable.h"
#include "thalweg/error.h"

namespace thalweg::io {
namespace {

namespace fs = std::filesystem;

constexpr const char* kFileName = "model.safetensors";
constexpr const char* kIndexName = "model.safetensors.index.json";

// The file of tensors or the index of such files that `path` means.
fs::path resolve(const std::string& path) {
  std::error_code ignored;
  if (!fs::is_directory(path, ignored)) return path;
  for (const char* name : {kFileName, kIndexName}) {
    if (fs::exists(fs::path(path) / name, ignored)) return fs::path(path) / name;
  }
  throw Error(path, "folder", std::string(kFileName) + " or " + kIndexName + " in it", "neither");
}

std::size_t natural_alignment(DType dtype) { return static_cast<std::size_t>(dtype_info(dtype).block_bytes); }

}  // namespace

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  const std::string found = resolve(path).string();
  if (found.ends_with(".json")) {
    open_index(found);
  } else {
    open_file(found);
    for (std::size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
  }
}

void SafetensorsFile::open_file(const std::string& path) {
  files_.emplace_back(path);
  SafetensorsHeader header = parse_safetensors(files_.back().bytes(), path);
  if (files_.size() == 1) metadata_ = std::move(header.metadata);
  for (SafetensorsTensor& tensor : header.tensors) {
    tensor.file = files_.size() - 1;
    tensors_.push_back(std::move(tensor));
  }
}

// Files may hold tensors that the index does not name; they do not belong to the model.
void SafetensorsFile::open_index(const std::string& path) {
  const JsonObject map = JsonObject::read(path).object("weight_map");
  std::map<std::string, std::map<std::string, bool>> wanted;  // by file, tensors and whether they were found
  for (const std::string& name : map.keys()) {
    const std::string file = map.string(name);
    if (file.empty() || file == "." || file == ".." || file.find_first_of("/\\") != std::string::npos ||
        file.find('\0') != std::string::npos) {
      throw Error(path, "tensor " + printable(name), "the name of a file beside the index", printable(file));
    }
    wanted[file].emplace(name, false);
  }
  for (auto& [file, names] : wanted) {
    const std::size_t before = tensors_.size();
    open_file((fs::path(path).parent_path() / file).string());
    const auto unwanted = [&names = names](const SafetensorsTensor& tensor) {
      const auto found = names.find(tensor.name);
      if (found == names.end()) return true;
      found->second = true;
      return false;
    };
    tensors_.erase(std::remove_if(tensors_.begin() + static_cast<std::ptrdiff_t>(before), tensors_.end(), unwanted),
                   tensors_.end());
    for (const auto& [name, found] : names) {
      if (!found)
        throw Error(files_.back().path(), "tensor " + printable(name), "it in the file, as the index says", "none");
    }
  }
  for (std::size_t i = 0; i < tensors_.size(); ++i) index_.emplace(tensors_[i].name, i);
}

std::vector<std::string> SafetensorsFile::paths() const {
  std::vector<std::string> paths;
  for (const MappedFile& file : files_) paths.push_back(file.path());
  return paths;
}

bool SafetensorsFile::has(std::string_view name) const { return index_.find(name) != index_.end(); }

ConstTensor SafetensorsFile::tensor(std::string_view name) const {
  const auto found = index_.find(name);
  const std::string subject = "tensor " + printable(name);
  if (found == index_.end()) {
    throw Error(path_, subject, "it in the file", "none of that name among " + std::to_string(tensors_.size()));
  }
  const SafetensorsTensor& info = tensors_[found->second];
  const MappedFile& file = files_[info.file];
  if (!info.dtype) throw Error(file.path(), subject, "F32, F16, BF16 or I32", printable(info.type));
  if (info.shape.size() > static_cast<std::size_t>(kMaxRank)) {
    throw Error(file.path(), subject, "at most " + std::to_string(kMaxRank) + " dimensions",
                std::to_string(info.shape.size()));
  }
  // Writers older than 2023 did not pad the header.
  if (info.bytes > 0 && info.offset % natural_alignment(*info.dtype) != 0) {
    throw Error(file.path(), subject,
                "data at a multiple of its element size: save the file anew with a current writer",
                "byte " + std::to_string(info.offset));
  }
  return contiguous_view(file.bytes().data() + info.offset, *info.dtype, info.shape);
}

std::vector<std::string> SafetensorsFile::names() const {
  std::vector<std::string> names;
  names.reserve(tensors_.size());
  for (const SafetensorsTensor& tensor : tensors_) names.push_back(tensor.name);
  return names;
}

std::uint64_t SafetensorsFile::bytes() const {
  std::uint64_t sum = 0;
  for (const SafetensorsTensor& tensor : tensors_) sum += tensor.bytes;
  return sum;
}

void SafetensorsFile::require_intact() const { io::require_intact(files_); }
void SafetensorsFile::prefetch(std::function<void(double done)> progress) const { prefetch_files(files_, progress); }

void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, ConstTensor>>& tensors,
                       const std::vector<std::pair<std::string, std::string>>& metadata) {
  // The widest elements first, so that each lies on a multiple of its size.
  std::vector<const std::pair<std::string, ConstTensor>*> order;
  for (const auto& entry : tensors) order.push_back(&entry);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return natural_alignment(a->second.dtype) > natural_alignment(b->second.dtype);
  });
  nlohmann::json header = nlohmann::json::object();
  for (const auto& [key, value] : metadata) header["__metadata__"][key] = value;
  std::uint64_t offset = 0;
  for (const auto* entry : order) {
    const auto& [name, tensor] = *entry;
    if (is_block_format(tensor.dtype)) {
      throw Error(path, "tensor " + printable(name), "F32, F16, BF16 or I32", dtype_name(tensor.dtype));
    }
    if (header.contains(name) || name == "__metadata__") {
      throw Error(path, "tensor " + printable(name), "each tensor once, none named __metadata__", "another");
    }
    const auto bytes = static_cast<std::uint64_t>(bytes_of(tensor.dtype, tensor.size()));
    header[name] = {{"dtype", dtype_name(tensor.dtype)},
                    {"shape", std::vector<std::int64_t>(tensor.shape.begin(), tensor.shape.begin() + tensor.rank)},
                    {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  AtomicFile file(path);
  file.write(&length, sizeof(length));
  file.write(text.data(), text.size());
  for (const auto* entry : order) {
    const ConstTensor& tensor = entry->second;
    file.write(tensor.data, static_cast<std::size_t>(bytes_of(tensor.dtype, tensor.size())));
  }
  file.commit();
}

}  // namespace thalweg::io
