#include "grammar/masks.h"

#include <algorithm>
#include <string>
#include <utility>

#include "thalweg/error.h"

namespace thalweg::grammar {
namespace {

constexpr std::size_t kMostMemory = 48U << 20;
constexpr std::size_t kMostMaskBytes = 24U << 20;

void set(Mask& mask, std::int32_t token) {
  mask[static_cast<std::size_t>(token) / 32] |= 1U << static_cast<std::uint32_t>(token) % 32;
}

}  // namespace

MaskCache::MaskCache(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const Vocabulary> vocabulary)
    : automaton_(std::move(automaton)),
      vocabulary_(std::move(vocabulary)),
      matcher_(std::make_unique<Matcher>(*automaton_)),
      path_(vocabulary_->longest() + 1) {}

void MaskCache::trim() {
  const std::size_t mask_bytes = vocabulary_->mask_words() * sizeof(Mask::value_type);
  const bool masks_fit = masks_.size() * mask_bytes <= kMostMaskBytes && cores_.size() * mask_bytes <= kMostMaskBytes;
  if (!masks_fit) {
    masks_.clear();
    cores_.clear();
  }
  if (matcher_->memory() <= kMostMemory) return;
  masks_.clear();
  cores_.clear();
  matcher_ = std::make_unique<Matcher>(*automaton_);
  ++generation_;
}

void MaskCache::add_tokens(std::uint32_t node, Mask& mask) const {
  for (const std::int32_t token : vocabulary_->tokens(node)) set(mask, token);
}

void MaskCache::walk(ConfigId config, std::uint32_t first, std::uint32_t last, std::uint32_t depth, Mask& mask,
                     std::vector<std::uint32_t>* ends) {
  Matcher& matcher = *matcher_;
  path_[depth] = config;
  for (std::uint32_t index = first; index < last;) {
    const Vocabulary::Node& node = vocabulary_->node(index);
    const ConfigId next = matcher.step(path_[node.depth - 1], node.byte);
    if (next == kDead) {
      index = node.end;
      continue;
    }
    path_[node.depth] = next;
    add_tokens(index, mask);
    if (ends != nullptr && matcher.is_complete(next)) ends->push_back(index);
    ++index;
  }
}

const MaskCache::Core& MaskCache::core(ConfigId config) {
  const auto found = cores_.find(config);
  if (found != cores_.end()) return found->second;
  Core core = {Mask(vocabulary_->mask_words()), {}};
  walk(config, 0, vocabulary_->node_count(), 0, core.mask, &core.ends);
  return cores_.emplace(config, std::move(core)).first->second;
}

std::shared_ptr<const Mask> MaskCache::mask(ConfigId config) {
  const auto found = masks_.find(config);
  if (found != masks_.end()) return found->second;
  auto mask = std::make_shared<Mask>(vocabulary_->mask_words());
  // Items lie together that have one stack. A copy, because the walks add configs.
  const std::vector<Item> items(matcher_->items(config).begin(), matcher_->items(config).end());
  for (std::size_t first = 0, last = 0; first < items.size(); first = last) {
    while (last < items.size() && items[last].stack == items[first].stack) ++last;
    const ConfigId innermost = matcher_->core(std::span(items).subspan(first, last - first), vocabulary_->longest());
    const Core& of_rule = core(innermost);
    for (std::size_t i = 0; i < mask->size(); ++i) (*mask)[i] |= of_rule.mask[i];
    const ConfigId outside = matcher_->after_return(items[first].stack);
    if (outside == kDead) continue;
    for (const std::uint32_t index : of_rule.ends) {
      const Vocabulary::Node& node = vocabulary_->node(index);
      walk(outside, index + 1, node.end, node.depth, *mask, nullptr);
    }
  }
  if (matcher_->is_complete(config)) {
    for (const std::int32_t token : vocabulary_->ends()) set(*mask, token);
  }
  if (matcher_->is_free(config)) {
    for (const std::int32_t token : vocabulary_->others()) set(*mask, token);
  }
  masks_.emplace(config, mask);
  return mask;
}

Follower::Follower(std::shared_ptr<MaskCache> cache, std::int32_t free_until)
    : cache_(std::move(cache)), free_until_(free_until) {}

void Follower::update() {
  if (generation_ == cache_->generation()) return;
  generation_ = cache_->generation();
  config_ = cache_->matcher().start();
  for (const std::int32_t token : tokens_) config_ = after(config_, token);
}

ConfigId Follower::after(ConfigId config, std::int32_t token) {
  Matcher& matcher = cache_->matcher();
  const std::string_view text = cache_->vocabulary().text(token);
  if (text.empty()) return matcher.skip(config);
  for (std::size_t i = 0; i < text.size() && config != kDead; ++i) {
    config = matcher.step(config, static_cast<std::uint8_t>(text[i]));
  }
  return config;
}

std::span<const std::uint32_t> Follower::allowed() {
  if (free_until_ >= 0) return cache_->vocabulary().everything_but_ends();
  cache_->trim();
  update();
  mask_ = cache_->mask(config_);
  return *mask_;
}

void Follower::accept(std::int32_t token) {
  if (free_until_ >= 0) {
    if (token == free_until_) free_until_ = -1;
    return;
  }
  update();
  const ConfigId next = after(config_, token);
  if (next == kDead) throw Error("grammar", "token", "one that is allowed", std::to_string(token));
  config_ = next;
  tokens_.push_back(token);
}

bool Follower::is_complete() {
  if (free_until_ >= 0) return false;
  update();
  return cache_->matcher().is_complete(config_);
}

}  // namespace thalweg::grammar
