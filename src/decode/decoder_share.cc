// A prompt that ranks share, each of which has the whole model.

#include <algorithm>

#include "decode/decoder.h"

namespace thalweg::decode {

std::int64_t Decoder::next_chunk(int slot, std::int64_t seen, std::int64_t tokens, StatePool& pool) const {
  const std::int64_t alone = std::min(tokens, chunk_);
  if (group_ == nullptr || !group_->replicas()) return alone;
  std::int64_t shared = std::min(tokens, chunk_ * group_->count());
  while (SequenceShare::takes(group_, shared) &&
         SequenceShare(config_, *group_, pool, slot, seen, shared).longest() > chunk_) {
    shared -= shared / 16;
  }
  return SequenceShare::takes(group_, shared) ? shared : alone;
}

void Decoder::run_share(const Chunk& chunk, const DecoderInput& input, StatePool& pool,
                        const LogitsCallback& on_logits) {
  const std::int64_t seen = pool.length(input.slot);
  const SequenceShare share(config_, *group_, pool, input.slot, seen, chunk.count);
  batch_.clear();
  batch_.add(input.slot, seen + share.begin(),
             input.tokens.subspan(static_cast<std::size_t>(chunk.begin + share.begin()),
                                  static_cast<std::size_t>(share.end() - share.begin())));
  if (chunk.last) batch_.want(static_cast<std::int32_t>(batch_.count()) - 1);
  batch_.upload();
  step_.batch = &batch_;
  step_.set_decode(false);
  late_ffn_ = true;
  const Activations activations = lay_out_activations(batch_.wanted());
  step_.share = &share;
  try {
    run_layers(activations, pool);
  } catch (...) {
    step_.share = nullptr;
    throw;
  }
  step_.share = nullptr;
  Tensor logits;
  if (chunk.last) {
    if (share.is_last()) run_wanted(activations, 0, 1);
    logits = narrow(activations.logits, 0, 0, 1);
  }
  share.finish(logits);
  pool.set_length(input.slot, seen + chunk.count);
  if (!chunk.last) return;
  report_logits(logits, 1, [&](std::int64_t, std::span<const float> row) {
    on_logits(chunk.input, chunk.begin + chunk.count - 1, row);
  });
}

}  // namespace thalweg::decode
