#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "checkpoint/config.h"
#include "decode/rank_group.h"
#include "decode/runtime.h"
#include "decode/staged_copies.h"
#include "thalweg/tensor.h"

namespace thalweg::decode {

using checkpoint::ModelConfig;

// The states of a model's sequences where the model runs, one slot each. A Gated DeltaNet layer has the recurrent state
// [slots,HV,V,K] and the last inputs of its convolution f32 [slots,C,W-1]; a full-attention layer has keys and values
// [slots,S,HKV,A]. On the host S grows in steps as sequences do, up to the context; elsewhere it is the context from
// the start, so that no step allocates. With drafts a slot also keeps the inputs of a round's drafts, from which those
// that were accepted reach the state by a replay in the next round: until then the state is that of length - pending
// tokens.
//
// A model whose MTP layer makes drafts has one more layer with keys and values. Its row of a token is computed from
// that token and the trunk's hidden state at the token before; the first token has none. Rows are computed some tokens
// at a time, so that the hidden states of a slot's last tokens are kept until then: MtpRows says which.
class StatePool {
 public:
  // `state_dtype` is that of the recurrent state, F32 or BF16. `drafts`: most drafts of a round. Nothing is allocated
  // before allocate().
  StatePool(const ModelConfig& config, const Runtime& runtime, int slots, std::int64_t context, DType cache_dtype,
            DType state_dtype, std::int64_t drafts, bool mtp);

  int slots() const { return slots_; }
  std::int64_t context() const { return context_; }
  DType cache_dtype() const { return cache_dtype_; }
  DType state_dtype() const { return state_dtype_; }

  void allocate();
  // On rank 0 of several: from now on a slot's bytes are those of all ranks, this one's first; of replicas, one's.
  void set_group(RankGroup* group) { group_ = group; }
  // Of all slots, at the full context.
  std::uint64_t bytes() const;

  // A slot with a zero state; throws Error if all are taken.
  int acquire();
  void release(int slot);
  void clear(int slot);

  std::int64_t length(int slot) const { return lengths_[static_cast<std::size_t>(slot)]; }  // tokens seen
  void set_length(int slot, std::int64_t length) { lengths_[static_cast<std::size_t>(slot)] = length; }

  // The last tokens of a slot, which are not in its recurrent and convolution states.
  std::int64_t pending(int slot) const { return pending_[static_cast<std::size_t>(slot)]; }
  void set_pending(int slot, std::int64_t tokens) { pending_[static_cast<std::size_t>(slot)] = tokens; }
  // Takes the last of them away: drafts that were wrong.
  void drop(int slot, std::int64_t tokens);

  // What the MTP layer has of a slot's tokens: rows of all but the last ones.
  struct MtpRows {
    std::vector<std::int32_t> tokens;  // those last ones; hidden states from the token before them on are kept
    std::int32_t ahead = -1;           // without such tokens: the next one, if its row was computed before it ran
    bool lost = false;                 // tokens ran without the layer: it makes no drafts until the slot is cleared
  };
  bool has_mtp() const { return mtp_; }
  MtpRows& mtp_rows(int slot) { return mtp_rows_[static_cast<std::size_t>(slot)]; }
  const MtpRows& mtp_rows(int slot) const { return mtp_rows_[static_cast<std::size_t>(slot)]; }
  // Of keys() and values(), whose row i is that of token i + 1.
  std::size_t mtp_layer() const { return config_.layers.size(); }
  Tensor mtp_hidden() const;                                        // [slots,kept,D] f32, the oldest first
  std::int64_t mtp_kept() const { return mtp_ ? 2 + drafts_ : 0; }  // of a slot

  // Makes room for sequences of this many tokens; at most the context.
  void reserve(std::int64_t tokens);

  Tensor recurrent(std::size_t layer) const;
  Tensor conv(std::size_t layer) const;
  Tensor keys(std::size_t layer) const;
  Tensor values(std::size_t layer) const;
  Tensor draft_inputs(std::size_t layer) const;  // [slots,drafts,C], before the convolution
  Tensor draft_gates(std::size_t layer) const;   // [slots,drafts,2*HV], b | a

  // What follows is about slots without pending tokens, whose rows of the MTP layer are complete.

  // Where they lie: the recurrent and convolution states of a layer, and keys and values of tokens, none of a layer of
  // the other kind.
  std::vector<MemorySegment> state_segments(int slot, std::size_t layer) const;
  std::vector<MemorySegment> cache_segments(int slot, std::size_t layer, std::int64_t first, std::int64_t count) const;
  std::vector<MemorySegment> cache_segments(int slot, std::int64_t first, std::int64_t count) const;  // of all layers
  std::size_t layers() const { return layers_.size(); }

  // A slot's state, segment by segment in a fixed order, for a length that reserve() has made room for: the recurrent
  // and convolution states of all layers, and `length` tokens of keys and values. `mtp`: those of the MTP layer too, if
  // there is one, at the end.
  void read(int slot, std::int64_t length, const std::function<void(std::span<const std::byte>)>& take,
            bool mtp = true) const;
  // The same order; give(bytes) returns the next segment. Without `mtp` the MTP layer has lost the slot.
  void write(int slot, std::int64_t length, const std::function<std::span<const std::byte>(std::size_t)>& give,
             bool mtp = true);

  // Parts of a slot's state as one array. The recurrent and convolution states of all layers and the last hidden state
  // for the MTP layer, fixed_bytes():
  void read_states(int slot, std::byte* to) const;
  void write_states(int slot, const std::byte* from);
  // Keys and values of tokens [first, first + count), which reserve() has made room for, count * token_bytes(): layer
  // by layer keys, then values.
  void read_cache(int slot, std::int64_t first, std::int64_t count, std::byte* to) const;
  void write_cache(int slot, std::int64_t first, std::int64_t count, const std::byte* from);

  // The same within the device, to or from segments of its memory that have as many bytes or more: adds to copies that
  // Runtime::copy() makes. Not with several ranks.
  using Copies = std::vector<MemoryCopy>;
  void copy_states_to(int slot, std::span<const MemorySegment> to, Copies& copies) const;
  void copy_states_from(int slot, std::span<const MemorySegment> from, Copies& copies);
  void copy_cache_to(int slot, std::int64_t first, std::int64_t count, std::span<const MemorySegment> to,
                     Copies& copies) const;
  void copy_cache_from(int slot, std::int64_t first, std::int64_t count, std::span<const MemorySegment> from,
                       Copies& copies);
  // Other segments of the device's memory to the host.
  void read_segments(std::span<const MemorySegment> segments, std::byte* to) const;
  bool copies_within_device() const { return group_ == nullptr && runtime_.copies_within_device(); }

  std::uint64_t fixed_bytes() const;  // of a slot, without keys and values
  std::uint64_t token_bytes() const;  // of keys and values
  std::uint64_t draft_bytes() const;  // of a slot
  // Of the former two, what is the MTP layer's; of a pool without one, what it would be.
  std::uint64_t mtp_fixed_bytes() const;
  std::uint64_t mtp_token_bytes() const;

 private:
  // Host memory is zeroed by the system, page by page on first use: slots that are never used take no memory.
  struct Free {
    void operator()(void* memory) const;
  };
  struct Memory {
    std::unique_ptr<std::byte, Free> host;
    DeviceMemory device;
    std::byte* data() const { return host != nullptr ? host.get() : static_cast<std::byte*>(device.data()); }
  };
  struct Layer {
    Memory first;   // recurrent state, or keys
    Memory second;  // inputs of the convolution, or values
    Memory drafts;  // inputs of drafts, of a Gated DeltaNet layer; hidden states, of the MTP layer
    Memory draft_gates;
  };
  Memory zeros(std::uint64_t bytes) const;
  bool is_mtp(std::size_t layer) const { return layer == config_.layers.size(); }
  bool has_cache(std::size_t layer) const { return is_mtp(layer) || config_.layers[layer] == LayerKind::kAttention; }
  // Rows of a slot for so many tokens: the MTP layer has one for the first token too, which nothing reads, so that each
  // token's row follows from the tokens up to it.
  std::int64_t rows(std::size_t layer, std::int64_t tokens) const { return is_mtp(layer) ? tokens + 1 : tokens; }
  std::vector<MemorySegment> segments(int slot, std::int64_t length, bool mtp = true) const;
  // The others have what this rank has.
  void replicate(const SlotPart& part) const;
  void write_segments(std::span<const MemorySegment> segments, const std::byte* from);
  std::uint64_t row_bytes() const;  // of one token's keys
  std::uint64_t fixed_bytes_here() const;
  std::uint64_t token_bytes_here() const;
  Tensor cache(std::size_t layer, const Memory& memory) const;

  ModelConfig config_;
  const Runtime& runtime_;
  RankGroup* group_ = nullptr;
  int slots_;
  std::int64_t context_;
  DType cache_dtype_;
  DType state_dtype_;
  std::int64_t drafts_;
  bool mtp_;
  std::int64_t capacity_ = 0;  // S
  std::vector<Layer> layers_;
  std::vector<std::int64_t> lengths_;
  std::vector<std::int64_t> pending_;
  std::vector<MtpRows> mtp_rows_;
  std::vector<bool> taken_;
  mutable StagedCopies copies_;
};

}  // namespace thalweg::decode
