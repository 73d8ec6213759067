#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/config.h"
#include "thalweg/tensor.h"

namespace thalweg::decode {

using checkpoint::ModelConfig;

// The states of a model's sequences in host memory, one slot each. A Gated DeltaNet layer has the recurrent state f32
// [slots,HV,V,K] and the last inputs of its convolution f32 [slots,C,W-1]; a full-attention layer has keys and values
// [slots,S,HKV,A], for which S grows in steps as sequences do, up to the context.
class StatePool {
 public:
  StatePool(const ModelConfig& config, int slots, std::int64_t context, DType cache_dtype);

  int slots() const { return slots_; }
  std::int64_t context() const { return context_; }
  DType cache_dtype() const { return cache_dtype_; }

  // A slot with a zero state; throws Error if all are taken.
  int acquire();
  void release(int slot);
  void clear(int slot);

  std::int64_t length(int slot) const { return lengths_[static_cast<std::size_t>(slot)]; }  // tokens seen
  void set_length(int slot, std::int64_t length) { lengths_[static_cast<std::size_t>(slot)] = length; }

  // Makes room for sequences of this many tokens; at most the context.
  void reserve(std::int64_t tokens);

  Tensor recurrent(std::size_t layer) const;
  Tensor conv(std::size_t layer) const;
  Tensor keys(std::size_t layer) const;
  Tensor values(std::size_t layer) const;

  // The memory of a slot's state, in a fixed order, for a length that reserve() has made room for.
  std::vector<std::span<std::byte>> slot_memory(int slot, std::int64_t length) const;

  std::uint64_t fixed_bytes() const;  // of a slot, without keys and values
  std::uint64_t token_bytes() const;  // of keys and values

 private:
  struct Free {
    void operator()(void* memory) const;
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  static Memory allocate(std::uint64_t bytes);

  struct Layer {
    Memory first;   // recurrent state, or keys
    Memory second;  // inputs of the convolution, or values
  };

  std::uint64_t row_bytes() const;  // of one token's keys
  Tensor cache(const Memory& memory) const;

  ModelConfig config_;
  int slots_;
  std::int64_t context_;
  DType cache_dtype_;
  std::int64_t capacity_ = 0;  // S
  std::vector<Layer> layers_;
  std::vector<std::int64_t> lengths_;
  std::vector<bool> taken_;
};

}  // namespace thalweg::decode
