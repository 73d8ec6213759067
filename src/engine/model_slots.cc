#include "engine/model_slots.h"

#include <algorithm>

#include "decode/checksum.h"
#include "decode/model_impl.h"

namespace thalweg::engine {

int ModelSlots::slots() const { return model_.impl_->pool->slots(); }
std::int64_t ModelSlots::vocabulary() const { return model_.impl_->config.vocabulary; }
bool ModelSlots::on_host() const { return model_.impl_->runtime->on_host(); }

DraftMode ModelSlots::draft() const { return model_.impl_->draft; }
int ModelSlots::draft_max() const { return model_.impl_->options.draft_max; }
const decode::RoundCosts& ModelSlots::round_costs() const { return model_.impl_->round_costs; }

bool ModelSlots::can_choose(const Sampling& sampling) const { return model_.impl_->can_choose(sampling); }

bool ModelSlots::constrains_on_device() const { return model_.impl_->constrains_on_device(); }

std::vector<StopReason> ModelSlots::decode(std::span<Sequence* const> sequences, std::span<const Sampling> sampling,
                                           std::int64_t most, const AllowedOf& allowed, const OnTokens& on_tokens,
                                           bool ignore_end) {
  return model_.impl_->decode(sequences, sampling, most, allowed, on_tokens, {}, ignore_end);
}

std::int32_t ModelSlots::choose(const Sequence& sequence, const Sampling& sampling,
                                std::span<const std::uint32_t> allowed) const {
  return sequence.impl_->choose(sampling, allowed);
}

void ModelSlots::make_drafts(std::span<const Drafted> batch) {
  std::vector<Model::Impl::Drafted> all;
  for (const Drafted& one : batch) all.push_back({one.sequence->impl_.get(), one.next, one.room, one.drafter});
  model_.impl_->make_drafts(all);
}

void ModelSlots::run_drafts(std::span<const SequenceInput> batch, std::span<const Sampling> sampling,
                            const std::function<bool(std::size_t sequence, std::int32_t draft)>& accept) {
  model_.impl_->run_drafts(batch, sampling, accept);
}

const text::Tokenizer* ModelSlots::tokenizer() const {
  return model_.impl_->tokenizer ? &*model_.impl_->tokenizer : nullptr;
}

std::size_t ModelSlots::block_bytes() const {
  return static_cast<std::size_t>(model_.impl_->pool->token_bytes() * kBlock);
}

std::size_t ModelSlots::checkpoint_bytes() const { return model_.impl_->pool->fixed_bytes(); }

std::uint64_t ModelSlots::key(bool with_answers) const {
  decode::Checksum sum;
  sum.add_value(model_.impl_->fingerprint());
  sum.add_value(model_.impl_->pool->cache_dtype());
  sum.add_value(model_.impl_->pool->state_dtype());
  sum.add(model_.impl_->info.device);
  if (model_.impl_->pool->has_mtp()) sum.add("mtp");
  if (with_answers) sum.add("answers");
  return sum.value();
}

HostBytes ModelSlots::read_block(const Sequence& sequence, std::int64_t first_token, std::int64_t count) const {
  sequence.impl_->settle();
  const std::size_t bytes = block_bytes();
  std::shared_ptr<std::byte[]> block(new std::byte[bytes]);
  const std::size_t used = bytes / kBlock * static_cast<std::size_t>(count);
  std::fill(block.get() + used, block.get() + bytes, std::byte{0});
  model_.impl_->pool->read_cache(sequence.impl_->slot, first_token, count, block.get());
  return block;
}

HostBytes ModelSlots::read_checkpoint(const Sequence& sequence) const {
  sequence.impl_->settle();
  std::shared_ptr<std::byte[]> checkpoint(new std::byte[checkpoint_bytes()]);
  model_.impl_->pool->read_states(sequence.impl_->slot, checkpoint.get());
  return checkpoint;
}

template <class Memory, class WriteBlock, class WriteStates>
void ModelSlots::restore(Sequence& sequence, std::span<const std::int32_t> text, const Prefix<Memory>& prefix,
                         const WriteBlock& write_block, const WriteStates& write_states) {
  Sequence::Impl& state = *sequence.impl_;
  decode::StatePool& pool = *model_.impl_->pool;
  pool.reserve(prefix.tokens);
  std::int64_t first = 0;
  for (const Memory& block : prefix.blocks) {
    const std::int64_t count = std::min(kBlock, prefix.tokens - first);
    write_block(pool, state.slot, first, count, block);
    first += count;
  }
  write_states(pool, state.slot, prefix.checkpoint);
  pool.set_length(state.slot, prefix.tokens);
  state.set_logits({});
  state.tokens.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(prefix.tokens));
}

void ModelSlots::restore(Sequence& sequence, std::span<const std::int32_t> text, const Prefix<HostBytes>& prefix,
                         const HostPool* pool) {
  Copies copies;
  const auto segment_of = [&](const HostBytes& memory, std::size_t bytes) {
    return decode::MemorySegment{const_cast<std::byte*>(memory.get()), bytes};
  };
  const auto is_pinned = [&](const HostBytes& memory) { return pool != nullptr && pool->owns(memory.get()); };
  restore(
      sequence, text, prefix,
      [&](decode::StatePool& states, int slot, std::int64_t first, std::int64_t count, const HostBytes& block) {
        if (!is_pinned(block)) return states.write_cache(slot, first, count, block.get());
        const decode::MemorySegment segment = segment_of(block, block_bytes());
        states.copy_cache_from(slot, first, count, std::span(&segment, 1), copies);
      },
      [&](decode::StatePool& states, int slot, const HostBytes& checkpoint) {
        if (!is_pinned(checkpoint)) return states.write_states(slot, checkpoint.get());
        const decode::MemorySegment segment = segment_of(checkpoint, checkpoint_bytes());
        states.copy_states_from(slot, std::span(&segment, 1), copies);
      });
  copy(copies);
}

bool ModelSlots::has_pages() const { return model_.impl_->pool->copies_within_device(); }
std::size_t ModelSlots::free_device_memory() const { return model_.impl_->runtime->free_memory(); }

std::shared_ptr<PagePool> ModelSlots::make_pages(std::uint64_t bytes) const {
  return std::make_shared<PagePool>(*model_.impl_->runtime, bytes, block_bytes());
}

DeviceBytes ModelSlots::copy_block(const Sequence& sequence, std::int64_t first_token, std::int64_t count,
                                   PagePool& pages, Copies& copies) const {
  sequence.impl_->settle();
  DeviceBytes block = pages.take(block_bytes());
  model_.impl_->pool->copy_cache_to(sequence.impl_->slot, first_token, count, block->segments(), copies);
  return block;
}

DeviceBytes ModelSlots::copy_checkpoint(const Sequence& sequence, PagePool& pages, Copies& copies) const {
  sequence.impl_->settle();
  DeviceBytes checkpoint = pages.take(checkpoint_bytes());
  model_.impl_->pool->copy_states_to(sequence.impl_->slot, checkpoint->segments(), copies);
  return checkpoint;
}

void ModelSlots::copy(const Copies& copies) const { model_.impl_->runtime->copy(copies); }

void ModelSlots::restore(Sequence& sequence, std::span<const std::int32_t> text, const Prefix<DeviceBytes>& prefix) {
  Copies copies;
  restore(
      sequence, text, prefix,
      [&](decode::StatePool& pool, int slot, std::int64_t first, std::int64_t count, const DeviceBytes& block) {
        pool.copy_cache_from(slot, first, count, block->segments(), copies);
      },
      [&](decode::StatePool& pool, int slot, const DeviceBytes& checkpoint) {
        pool.copy_states_from(slot, checkpoint->segments(), copies);
      });
  copy(copies);
}

std::shared_ptr<HostPool> ModelSlots::make_host_pool(std::uint64_t most) const {
  return std::make_shared<HostPool>(*model_.impl_->runtime, block_bytes(), checkpoint_bytes(), most);
}

HostBytes ModelSlots::to_host(const DevicePages& pages, std::size_t used, std::size_t bytes, HostPool& pool,
                              Copies& copies) const {
  const std::vector<decode::MemorySegment> from = decode::first_bytes(pages.segments(), used);
  std::shared_ptr<std::byte[]> memory = pool.take(bytes);
  if (memory != nullptr) {
    const decode::MemorySegment to{memory.get(), used};
    decode::add_copies(std::span(&to, 1), from, copies);
    if (used < bytes) copies.push_back({memory.get() + used, nullptr, bytes - used});
    return memory;
  }
  memory.reset(new std::byte[bytes]);
  std::fill(memory.get() + used, memory.get() + bytes, std::byte{0});
  model_.impl_->pool->read_segments(from, memory.get());
  return memory;
}

HostBytes ModelSlots::read_block(const DevicePages& block, std::int64_t count, HostPool& pool, Copies& copies) const {
  return to_host(block, block_bytes() / kBlock * static_cast<std::size_t>(count), block_bytes(), pool, copies);
}

HostBytes ModelSlots::read_checkpoint(const DevicePages& checkpoint, HostPool& pool, Copies& copies) const {
  return to_host(checkpoint, checkpoint_bytes(), checkpoint_bytes(), pool, copies);
}

void ModelSlots::wait() const { model_.impl_->runtime->wait(); }

}  // namespace thalweg::engine
