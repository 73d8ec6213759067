#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "convert/tensor_plan.h"
#include "convert/type_mix.h"
#include "io/gguf_metadata.h"
#include "io/json_file.h"

namespace thalweg::convert {

struct ConvertOptions {
  int threads = 0;
  std::function<void(double done)> progress;  // called with the fraction done, and with 1 at the end
};

struct Converted {
  std::string architecture;
  std::size_t tensors = 0;
  std::uint64_t source_bytes = 0;
  std::uint64_t bytes = 0;         // of the new file's tensors
  std::vector<std::string> notes;  // for the user: types that did not fit, weights packed twice
};

// Writes a GGUF file from a GGUF file or a Hugging Face directory. The file appears whole or not at all; `in` and `out`
// must differ. Throws Error that names file and key or tensor; before anything is written for a model that Model::load
// would refuse.
Converted convert_model(const std::string& in, const std::string& out, const TypeMix& mix,
                        const ConvertOptions& options);

// The keys that describe a model of this configuration. `rope_sections`: four numbers for Qwen3.5, from the file or by
// default_rope_sections().
io::GgufMetadata gguf_metadata(const ModelConfig& config, const std::vector<std::int64_t>& rope_sections,
                               std::int64_t file_type);
std::vector<std::int64_t> default_rope_sections(int rotary_dim);

// Adds the keys tokenizer.* from a directory's tokenizer.json and tokenizer_config.json. Returns
// false, and adds nothing, without tokenizer.json.
bool add_tokenizer(io::GgufMetadata& metadata, const std::string& folder, const ModelConfig& config);

// Sets the type of every plan. Returns notes about rows that did not fit.
std::vector<std::string> choose_types(std::vector<TensorPlan>& plans, const TypeMix& mix);

}  // namespace thalweg::convert
