#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/config.h"
#include "io/gguf_writer.h"
#include "thalweg/device.h"
#include "thalweg/tensor.h"

namespace thalweg::convert {

using checkpoint::ModelConfig;

// How a tensor of a GGUF file comes from tensors of another file.
struct TensorPlan {
  enum class Change : std::uint8_t { kNone, kPlusOne, kMinusExp };

  std::string name;                   // in the new file
  std::vector<std::int64_t> shape;    // there, row-major
  DType dtype = DType::kF32;          // there
  std::string source;                 // name in the old file, for messages
  std::vector<ConstTensor> sources;   // equal in size and dtype, contiguous; more than one are stacked
  std::vector<std::int64_t> rows;     // row i is row rows[i] of the sources; empty: row i
  std::vector<std::int64_t> columns;  // value j of a row is value columns[j]; empty: value j
  Change change = Change::kNone;
};

// Looks a tensor up by its name in a Hugging Face file; the shape without dimensions of 1 must be the one given.
class TensorLookup {
 public:
  TensorLookup() = default;
  virtual ~TensorLookup() = default;
  TensorLookup(const TensorLookup&) = delete;
  TensorLookup& operator=(const TensorLookup&) = delete;
  virtual bool has(const std::string& name) const = 0;
  virtual ConstTensor find(const std::string& name, const std::vector<std::int64_t>& shape) const = 0;
};

// The tensors of a GGUF file with the conventions of the converter of llama.cpp: names, layout of the value heads,
// norms that hold 1 + w, ssm_a = -exp(A_log). `config` is that of the Hugging Face model; `prefix` stands before its
// tensors' names. Types are left F32.
std::vector<TensorPlan> plan_hugging_face(const ModelConfig& config, const std::string& prefix,
                                          const TensorLookup& lookup);

// Declares the tensors, writes their data in pieces and finishes the file. Values that are not finite, or too large for
// F16, are refused with an Error of `path` and the source's name.
void write_planned(const std::vector<TensorPlan>& plans, const std::string& path, io::GgufWriter& writer,
                   const Stream& stream);

}  // namespace thalweg::convert
