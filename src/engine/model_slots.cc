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
  return static_cast<std::size_t>(model_.impl_->pool->token_bytes() * PrefixCache::kBlock);
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

PrefixCache::Memory ModelSlots::read_block(const Sequence& sequence, std::int64_t first_token,
                                           std::int64_t count) const {
  sequence.impl_->settle();
  const std::size_t bytes = block_bytes();
  std::shared_ptr<std::byte[]> block(new std::byte[bytes]);
  const std::size_t used = bytes / PrefixCache::kBlock * static_cast<std::size_t>(count);
  std::fill(block.get() + used, block.get() + bytes, std::byte{0});
  model_.impl_->pool->read_cache(sequence.impl_->slot, first_token, count, block.get());
  return block;
}

PrefixCache::Memory ModelSlots::read_checkpoint(const Sequence& sequence) const {
  sequence.impl_->settle();
  std::shared_ptr<std::byte[]> checkpoint(new std::byte[checkpoint_bytes()]);
  model_.impl_->pool->read_states(sequence.impl_->slot, checkpoint.get());
  return checkpoint;
}

void ModelSlots::restore(Sequence& sequence, std::span<const std::int32_t> text, const PrefixCache::Hit& hit) {
  Sequence::Impl& state = *sequence.impl_;
  decode::StatePool& pool = *model_.impl_->pool;
  pool.reserve(hit.tokens);
  std::int64_t first = 0;
  for (const PrefixCache::Memory& block : hit.prefix.blocks) {
    const std::int64_t count = std::min(PrefixCache::kBlock, hit.tokens - first);
    pool.write_cache(state.slot, first, count, block.get());
    first += count;
  }
  pool.write_states(state.slot, hit.prefix.checkpoint.get());
  pool.set_length(state.slot, hit.tokens);
  state.set_logits({});
  state.tokens.assign(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(hit.tokens));
}

}  // namespace thalweg::engine
