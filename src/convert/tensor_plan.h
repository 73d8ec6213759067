#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "io/gguf_writer.h"
#include "io/tensor_source.h"
#include "thalweg/device.h"
#include "thalweg/tensor.h"

namespace thalweg::convert {

using checkpoint::ModelConfig;

// How a tensor of a GGUF file is computed from tensors of another file.
struct TensorPlan {
  enum class Change : std::uint8_t { kNone, kPlusOne, kMinusExp };

  std::string name;                   // in the new file
  std::vector<std::int64_t> shape;    // in the new file, row-major
  DType dtype = DType::kF32;          // in the new file
  std::string source;                 // name in the source file, for errors
  std::vector<ConstTensor> sources;   // equal in size and dtype, contiguous; more than one are stacked
  std::vector<std::int64_t> rows;     // row i is row rows[i] of the sources; empty: row i
  std::vector<std::int64_t> columns;  // value j of a row is value columns[j]; empty: value j
  Change change = Change::kNone;
};

// Finds a tensor by its name in a Hugging Face file. Its shape without dimensions of 1 must be `shape` without them.
class TensorLookup {
 public:
  TensorLookup() = default;
  virtual ~TensorLookup() = default;
  TensorLookup(const TensorLookup&) = delete;
  TensorLookup& operator=(const TensorLookup&) = delete;
  virtual bool has(const std::string& name) const = 0;
  virtual ConstTensor find(const std::string& name, const std::vector<std::int64_t>& shape) const = 0;
};

// Shapes without data, for models that no file holds.
class NoTensors final : public TensorLookup {
 public:
  bool has(const std::string&) const override { return false; }
  ConstTensor find(const std::string&, const std::vector<std::int64_t>& shape) const override {
    return io::contiguous_view(nullptr, DType::kF32, shape);
  }
};

// The tensors of a GGUF file with the conventions of the converter of llama.cpp: names, layout of the value heads,
// norms that hold 1 + w, ssm_a = -exp(A_log), the MTP layer as the block after the trunk's. `config` is that of the
// Hugging Face model; the names of its tensors begin with `prefix`, those of its MTP layer with `mtp_prefix`. The types
// are F32.
std::vector<TensorPlan> plan_hugging_face(const ModelConfig& config, const std::string& prefix,
                                          const std::string& mtp_prefix, const TensorLookup& lookup);

// Declares the tensors, writes their data in runs of rows and finishes the file. Throws Error that names `path` and the
// source tensor for values that are not finite, or too large for F16, and if the source lost data meanwhile.
void write_planned(const std::vector<TensorPlan>& plans, const io::TensorSource& source, const std::string& path,
                   io::GgufWriter& writer, const Stream& stream);

}  // namespace thalweg::convert
