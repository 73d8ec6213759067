#pragma once

// What rank 0 has the others run, and its form in a message.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "thalweg/sampling.h"

namespace thalweg::decode {

// New tokens of one sequence in a run of the layers.
struct RankedChunk {
  int slot = 0;
  std::int64_t seen = 0;  // tokens of the sequence before
  bool last = false;      // logits after its last token are wanted
  std::vector<std::int32_t> tokens;
};

// A sequence that a loop of steps continues.
struct RankedStart {
  int slot = 0;
  std::int64_t seen = 0;  // its tokens so far
  std::int32_t next = 0;  // the first token to run
  Sampling sampling;
  std::vector<std::int32_t> tokens;  // those so far, where a repetition penalty needs them
};

std::vector<std::byte> pack(std::span<const RankedChunk> chunks);
std::vector<RankedChunk> unpack_chunks(std::span<const std::byte> message);
std::vector<std::byte> pack(std::span<const RankedStart> starts);
std::vector<RankedStart> unpack_starts(std::span<const std::byte> message);

}  // namespace thalweg::decode
