#pragma once

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/atomic_file.h"
#include "io/gguf_metadata.h"
#include "thalweg/dtype.h"

namespace thalweg::io {

// Writes a GGUF file of version 3. The caller declares every tensor, then writes their data in the same order, in runs
// of any size, none of which is kept in memory. The file appears when finish() returns, and not otherwise.
class GgufWriter {
 public:
  // Called with the fraction of the data written, and with 1 at the end.
  using Progress = std::function<void(double done)>;

  // Metadata is written in its order, without the keys that describe the layout of a file, which the writer sets
  // itself: general.alignment and split.*.
  GgufWriter(std::string path, const GgufMetadata& metadata, Progress progress = {});

  // shape: row-major, 1 to 4 dimensions, the last a multiple of the dtype's block size. Names have 1 to 63 bytes, the
  // limit of other readers.
  void declare(std::string name, DType dtype, std::vector<std::int64_t> shape);

  // Writes the next bytes of the first tensor that is not complete, whose name must be `name`.
  void write(std::string_view name, const void* data, std::size_t bytes);

  void finish();

 private:
  struct Declared {
    std::string name;
    DType dtype;
    std::vector<std::int64_t> shape;
    std::uint64_t bytes;
    std::uint64_t offset;
  };

  [[noreturn]] void fail(std::string_view name, std::string_view expected, std::string_view given) const;
  void write_header();
  void skip_complete();
  void pad();

  AtomicFile file_;
  GgufMetadata metadata_;
  Progress progress_;
  std::vector<Declared> tensors_;
  std::set<std::string, std::less<>> names_;
  bool header_written_ = false;
  std::size_t current_ = 0;         // the tensor that is being written
  std::uint64_t current_done_ = 0;  // its bytes so far
  std::uint64_t end_ = 0;           // offset of the next tensor to be declared
  std::uint64_t total_ = 0;         // bytes of all tensors
  std::uint64_t done_ = 0;
};

}  // namespace thalweg::io
