#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "io/mapped_file.h"
#include "io/tensor_source.h"

namespace thalweg::io {

struct SafetensorsTensor {
  std::string name;
  std::string type;            // as the file spells it: "BF16"
  std::optional<DType> dtype;  // none: the library does not compute with it
  std::vector<std::int64_t> shape;
  std::uint64_t offset = 0;  // of the first byte in its file
  std::uint64_t bytes = 0;
  std::size_t file = 0;  // index of the shard
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;                     // by offset
  std::vector<std::pair<std::string, std::string>> metadata;  // of the key __metadata__
};

// Reads the header of a file; `bytes` are the whole file, `path` names it in errors. Throws Error for a header that is
// too long or is not valid, duplicate names, shapes that do not fit their bytes, and tensors that do not fill the data
// without gaps, as the format requires.
SafetensorsHeader parse_safetensors(Bytes bytes, const std::string& path);

// A mapped safetensors model: a file, a folder with model.safetensors or model.safetensors.index.json, or such an
// index.
class SafetensorsFile final : public TensorSource {
 public:
  explicit SafetensorsFile(const std::string& path);

  // Of all shards, including tensors whose type tensor() refuses.
  const std::vector<SafetensorsTensor>& tensors() const { return tensors_; }
  // Of the first file.
  const std::vector<std::pair<std::string, std::string>>& metadata() const { return metadata_; }
  std::vector<std::string> paths() const;

  bool has(std::string_view name) const override;
  ConstTensor tensor(std::string_view name) const override;
  std::vector<std::string> names() const override;
  std::uint64_t bytes() const override;
  void require_intact() const override;
  void prefetch(std::function<void(double done)> progress) const override;

 private:
  void open_file(const std::string& path);
  void open_index(const std::string& path);

  std::string path_;  // as given, for messages
  std::vector<MappedFile> files_;
  std::vector<SafetensorsTensor> tensors_;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

// Writes contiguous tensors of types F32, F16, BF16 and I32 to one file, which appears whole or not at all.
void write_safetensors(const std::string& path, const std::vector<std::pair<std::string, ConstTensor>>& tensors,
                       const std::vector<std::pair<std::string, std::string>>& metadata = {});

}  // namespace thalweg::io
