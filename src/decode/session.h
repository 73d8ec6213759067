#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "checkpoint/weights.h"
#include "decode/state.h"
#include "io/mapped_file.h"
#include "io/tensor_source.h"

namespace thalweg::decode {

using checkpoint::Weights;

// A hash that differs between models: of the configuration, the names, shapes and types of tensors, and some bytes of
// each.
std::uint64_t fingerprint(const ModelConfig& config, const Weights& weights, const io::TensorSource& source);

// The contents of a session file besides the state in the pool.
struct SessionText {
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;  // [vocabulary], or empty if there are no tokens
};

// Session files, little-endian: magic, version, type of the cache, fingerprint, number of tokens; then tokens, logits
// and the slot's memory of the pool, in version 2 with that of the MTP layer, which version 1 lacks; a checksum of
// everything before it at the end. Written whole or not at all.
void save_session(const std::string& path, std::uint64_t model, const StatePool& pool, int slot,
                  std::span<const std::int32_t> tokens, std::span<const float> logits);

// Fills a slot from a file. Throws Error, before the slot changes, for a file that is damaged, of another model or too
// long for the pool.
SessionText restore_session(const std::string& path, std::uint64_t model, std::int64_t vocabulary, StatePool& pool,
                            int slot);
// From a file's bytes; `path` names them in errors.
SessionText restore_session(io::Bytes bytes, const std::string& path, std::uint64_t model, std::int64_t vocabulary,
                            StatePool& pool, int slot);

}  // namespace thalweg::decode
