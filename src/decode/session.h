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

// Tells models apart: their configuration, the names, shapes and types of their tensors, and some bytes of each.
std::uint64_t fingerprint(const ModelConfig& config, const Weights& weights, const io::TensorSource& source);

// What a session file holds beside the state in the pool.
struct SessionText {
  std::vector<std::int32_t> tokens;
  std::vector<float> logits;  // [vocabulary], or empty if there are no tokens
};

// Session files, little-endian: magic, version, type of the cache, fingerprint, number of tokens; then tokens, logits
// and the pool's pieces of the slot; a checksum of everything before it at the end. Written whole or not at all.
void save_session(const std::string& path, std::uint64_t model, const StatePool& pool, int slot,
                  std::span<const std::int32_t> tokens, std::span<const float> logits);

// Fills a slot from a file. Everything is checked before the slot changes: a file that is damaged, of another model or
// too long for the pool is refused with an Error.
SessionText restore_session(const std::string& path, std::uint64_t model, std::int64_t vocabulary, StatePool& pool,
                            int slot);
// The same of a file's bytes; `path` names them in errors.
SessionText restore_session(io::Bytes bytes, const std::string& path, std::uint64_t model, std::int64_t vocabulary,
                            StatePool& pool, int slot);

}  // namespace thalweg::decode
