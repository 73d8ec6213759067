#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "io/ggml_type.h"
#include "io/gguf_metadata.h"
#include "io/mapped_file.h"
#include "io/tensor_source.h"

namespace thalweg::io {

inline constexpr std::uint32_t kGgufDefaultAlignment = 32;
inline constexpr std::uint32_t kGgufMaxRank = 4;

struct GgufTensor {
  std::string name;
  GgmlType type;
  std::vector<std::int64_t> shape;  // row-major: the file's order reversed; a scalar is [1]
  std::uint64_t offset = 0;         // of the first byte in its file
  std::uint64_t bytes = 0;          // 0 if the type's size is not known
  std::size_t shard = 0;            // index of the file in a split model
};

// The header of one file: everything before its tensors' data, checked against the file's size.
struct GgufHeader {
  std::uint32_t version = 0;
  std::uint32_t alignment = kGgufDefaultAlignment;
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;
};

// Reads the header of a file of versions 2 and 3, little-endian; `bytes` are the whole file, `path` names it in errors.
// Throws Error for counts, lengths, shapes and offsets that the file cannot hold, duplicate keys and tensors, tensors
// that overlap, unknown value types, and arrays nested more than 8 deep.
GgufHeader parse_gguf(Bytes bytes, const std::string& path);

// A mapped GGUF model: one file, or any file of a split model (name-00001-of-00003.gguf), whose other files are in the
// same folder.
class GgufFile final : public TensorSource {
 public:
  explicit GgufFile(const std::string& path);

  std::uint32_t version() const { return version_; }
  std::uint32_t alignment() const { return alignment_; }
  // Of the first file, which has the model's metadata.
  const GgufMetadata& metadata() const { return metadata_; }
  // Of all files, in order, including tensors whose type tensor() refuses.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  std::vector<std::string> paths() const;

  bool has(std::string_view name) const override;
  ConstTensor tensor(std::string_view name) const override;
  std::vector<std::string> names() const override;
  std::uint64_t bytes() const override;
  void require_intact() const override;
  void prefetch(std::function<void(double done)> progress) const override;

 private:
  std::uint32_t version_ = 0;
  std::uint32_t alignment_ = 0;
  GgufMetadata metadata_;
  std::vector<MappedFile> files_;
  std::vector<GgufTensor> tensors_;
  std::map<std::string, std::size_t, std::less<>> index_;
};

}  // namespace thalweg::io
