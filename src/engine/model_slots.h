#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "decode/drafter.h"
#include "engine/device_pages.h"
#include "engine/host_pool.h"
#include "engine/prefix_cache.h"
#include "text/tokenizer.h"
#include "thalweg/model.h"

namespace thalweg::engine {

// What the engine needs of a model beyond its public functions: ranges of sequences as bytes.
class ModelSlots {
 public:
  explicit ModelSlots(Model& model) : model_(model) {}

  int slots() const;
  std::int64_t vocabulary() const;
  bool on_host() const;
  DraftMode draft() const;  // kOff where the model has none
  int draft_max() const;
  const decode::RoundCosts& round_costs() const;
  bool can_choose(const Sampling& sampling) const;
  bool constrains_on_device() const;
  // Model::decode without logits, by constraints: `allowed` of a sequence is called while its last tokens run.
  using AllowedOf = std::function<std::span<const std::uint32_t>(std::size_t sequence)>;
  using OnTokens = std::function<bool(std::span<const std::int32_t> tokens)>;
  std::vector<StopReason> decode(std::span<Sequence* const> sequences, std::span<const Sampling> sampling,
                                 std::int64_t most, const AllowedOf& allowed, const OnTokens& on_tokens,
                                 bool ignore_end);
  // Model::sample among the tokens whose bits are set; empty: among all.
  std::int32_t choose(const Sequence& sequence, const Sampling& sampling, std::span<const std::uint32_t> allowed) const;
  // A sequence of the next round, and what drafts for it.
  struct Drafted {
    const Sequence* sequence = nullptr;
    std::int32_t next = 0;  // its next token
    std::int64_t room = 0;  // for drafts
    decode::Drafter* drafter = nullptr;
  };
  // Gives each drafter its drafts of what follows the next token.
  void make_drafts(std::span<const Drafted> batch);
  // A run of the next token of each sequence and drafts of those that follow. Each draft is judged in order, when the
  // sequence's tokens and logits are those before it, and taken back with those after it if it is wrong. `accept` must
  // not throw. `sampling`, one for each where can_choose() of all: what follows is chosen on the device.
  void run_drafts(std::span<const SequenceInput> batch, std::span<const Sampling> sampling,
                  const std::function<bool(std::size_t sequence, std::int32_t draft)>& accept);

  const text::Tokenizer* tokenizer() const;  // null: the model has none

  std::size_t block_bytes() const;       // keys and values of kBlock tokens
  std::size_t checkpoint_bytes() const;  // the recurrent state

  // Differs between models, and between what may leave other bits of the same text: types, devices, and whether
  // states that decoding left are gone on from.
  std::uint64_t key(bool with_answers) const;

  // `count` tokens, at most a block; the rest of the block's memory is zero.
  HostBytes read_block(const Sequence& sequence, std::int64_t first_token, std::int64_t count) const;
  HostBytes read_checkpoint(const Sequence& sequence) const;
  // Makes an empty sequence the beginning of `text` that the cache holds. There are no logits before more tokens run.
  // Memory of `pool` the device reads itself, in the order of its stream.
  void restore(Sequence& sequence, std::span<const std::int32_t> text, const Prefix<HostBytes>& prefix,
               const HostPool* pool = nullptr);

  // The same within the model's device, where it has memory of its own and there is one rank. Of a block with less than
  // kBlock tokens the rest of the memory is left as it is. What is to be copied is added to `copies`, for copy().
  using Copies = std::vector<MemoryCopy>;
  bool has_pages() const;
  std::size_t free_device_memory() const;
  std::shared_ptr<PagePool> make_pages(std::uint64_t bytes) const;
  DeviceBytes copy_block(const Sequence& sequence, std::int64_t first_token, std::int64_t count, PagePool& pages,
                         Copies& copies) const;
  DeviceBytes copy_checkpoint(const Sequence& sequence, PagePool& pages, Copies& copies) const;
  void copy(const Copies& copies) const;
  void restore(Sequence& sequence, std::span<const std::int32_t> text, const Prefix<DeviceBytes>& prefix);
  // From there to the host: into the pool's memory by copy() of what is added to `copies`, else at once.
  std::shared_ptr<HostPool> make_host_pool(std::uint64_t most) const;
  HostBytes read_block(const DevicePages& block, std::int64_t count, HostPool& pool, Copies& copies) const;
  HostBytes read_checkpoint(const DevicePages& checkpoint, HostPool& pool, Copies& copies) const;
  // Until all copies are done.
  void wait() const;

 private:
  // Zeros behind `used`.
  HostBytes to_host(const DevicePages& pages, std::size_t used, std::size_t bytes, HostPool& pool,
                    Copies& copies) const;
  template <class Memory, class WriteBlock, class WriteStates>
  void restore(Sequence& sequence, std::span<const std::int32_t> text, const Prefix<Memory>& prefix,
               const WriteBlock& write_block, const WriteStates& write_states);

  Model& model_;
};

}  // namespace thalweg::engine
