#include "engine/prefix_cache.h"

#include <algorithm>
#include <utility>

#include "engine/device_pages.h"

namespace thalweg::engine {

template <class Memory>
struct PrefixCache<Memory>::Node {
  Node* parent = nullptr;
  const Tokens* tokens = nullptr;  // the key in the parent's map
  std::int64_t end = 0;            // tokens from the root to here
  Memory block;
  Memory checkpoint;
  double priority = 0;         // of the checkpoint
  std::uint64_t last_use = 0;  // of the checkpoint; decides between equal priorities
  using Children = std::map<Tokens, std::unique_ptr<Node>>;
  Children children;
  Children short_blocks;

  bool is_short() const { return end % kBlock != 0; }
  Children& siblings() const { return is_short() ? parent->short_blocks : parent->children; }
};

template <class Memory>
PrefixCache<Memory>::PrefixCache(std::size_t block_bytes, std::size_t checkpoint_bytes, std::uint64_t budget,
                                 OnEvict on_evict)
    : block_bytes_(block_bytes),
      checkpoint_bytes_(checkpoint_bytes),
      budget_(budget),
      on_evict_(std::move(on_evict)),
      root_(std::make_unique<Node>()) {}

template <class Memory>
PrefixCache<Memory>::~PrefixCache() {
  clear();
}

// Node by node from the leaves: a destructor that recurses would need a deep stack for a long text.
template <class Memory>
void PrefixCache<Memory>::clear() {
  while (!checkpoints_.empty()) {
    Node* node = checkpoints_.back();
    checkpoints_.pop_back();
    node->checkpoint.reset();
    bytes_ -= checkpoint_bytes_;
    prune(node);
  }
}

template <class Memory>
typename PrefixCache<Memory>::Tokens PrefixCache<Memory>::tokens_of(std::span<const std::int32_t> text,
                                                                    std::size_t block) {
  Tokens tokens;
  tokens.fill(-1);
  const auto rest = text.subspan(block * kBlock);
  std::copy_n(rest.begin(), std::min(rest.size(), tokens.size()), tokens.begin());
  return tokens;
}

// There are as many as answers end in this block: few.
template <class Memory>
typename PrefixCache<Memory>::Node* PrefixCache<Memory>::longest_short_block(const Node& node,
                                                                             std::span<const std::int32_t> rest) {
  Node* longest = nullptr;
  for (const auto& [tokens, child] : node.short_blocks) {
    const std::span own = std::span(tokens).first(static_cast<std::size_t>(child->end % kBlock));
    if (own.size() > rest.size() || !std::equal(own.begin(), own.end(), rest.begin())) continue;
    if (longest == nullptr || child->end > longest->end) longest = child.get();
  }
  return longest;
}

template <class Memory>
typename PrefixCache<Memory>::Node* PrefixCache<Memory>::child_of(const Node& node, const Tokens& tokens) {
  const auto& among = tokens.back() < 0 ? node.short_blocks : node.children;
  const auto child = among.find(tokens);
  return child != among.end() ? child->second.get() : nullptr;
}

template <class Memory>
typename PrefixCache<Memory>::Hit PrefixCache<Memory>::find(std::span<const std::int32_t> text) {
  Hit hit;
  std::vector<Memory> blocks;
  Node* node = root_.get();
  Node* last = nullptr;
  for (std::size_t i = 0; true; ++i) {
    const auto rest = text.subspan(i * kBlock);
    if (Node* found = longest_short_block(*node, rest)) last = found;
    Node* child = rest.size() >= kBlock ? child_of(*node, tokens_of(text, i)) : nullptr;
    if (child == nullptr) break;
    node = child;
    blocks.push_back(node->block);
    if (node->checkpoint != nullptr) last = node;
  }
  hit.known = node->end;
  if (last == nullptr) return hit;
  touch(*last);
  hit.tokens = last->end;
  hit.prefix.tokens = last->end;
  hit.prefix.checkpoint = last->checkpoint;
  blocks.resize(static_cast<std::size_t>(last->end / kBlock));
  if (last->is_short()) blocks.push_back(last->block);
  hit.prefix.blocks = std::move(blocks);
  return hit;
}

template <class Memory>
std::uint64_t PrefixCache<Memory>::missing_bytes(std::span<const std::int32_t> text) const {
  const std::size_t blocks = blocks_of(text.size());
  const Node* node = root_.get();
  for (std::size_t i = 0; i < blocks; ++i) {
    node = child_of(*node, tokens_of(text, i));
    if (node == nullptr) return (blocks - i) * block_bytes_ + checkpoint_bytes_;
  }
  return node->checkpoint != nullptr ? 0 : checkpoint_bytes_;
}

template <class Memory>
bool PrefixCache<Memory>::make_room(std::span<const std::int32_t> text) {
  if (blocks_of(text.size()) * block_bytes_ + checkpoint_bytes_ > budget_) return false;
  // What is dropped may be a part of the text, which is then missing.
  while (bytes_ + missing_bytes(text) > budget_) evict_one();
  return true;
}

template <class Memory>
bool PrefixCache<Memory>::insert(std::span<const std::int32_t> text, const BlockOf& block_of,
                                 const CheckpointOf& checkpoint_of) {
  if (text.empty() || !make_room(text)) return false;
  Node* node = root_.get();
  // Nodes without a checkpoint below them must not stay behind.
  struct Guard {
    PrefixCache& cache;
    Node*& node;
    ~Guard() { cache.prune(node); }
  } guard{*this, node};
  for (std::size_t i = 0; i < blocks_of(text.size()); ++i) {
    const Tokens tokens = tokens_of(text, i);
    Node* child = child_of(*node, tokens);
    if (child == nullptr) {
      auto created = std::make_unique<Node>();
      child = created.get();
      child->parent = node;
      child->end = std::min((static_cast<std::int64_t>(i) + 1) * kBlock, static_cast<std::int64_t>(text.size()));
      child->block = block_of(node->end, child->end - node->end);
      child->tokens = &child->siblings().emplace(tokens, std::move(created)).first->first;
      bytes_ += block_bytes_;
    }
    node = child;
  }
  if (node->checkpoint == nullptr) {
    Memory checkpoint = checkpoint_of();
    checkpoints_.push_back(node);
    node->checkpoint = std::move(checkpoint);
    bytes_ += checkpoint_bytes_;
  }
  touch(*node);
  return true;
}

template <class Memory>
bool PrefixCache<Memory>::insert(std::span<const std::int32_t> text, const Prefix<Memory>& prefix) {
  return insert(
      text,
      [&](std::int64_t first, std::int64_t /*count*/) {
        return prefix.blocks[static_cast<std::size_t>(first / kBlock)];
      },
      [&] { return prefix.checkpoint; });
}

template <class Memory>
void PrefixCache<Memory>::touch(Node& node) {
  const Node* before = node.parent;
  while (before != nullptr && before->checkpoint == nullptr) before = before->parent;
  const std::int64_t tokens = node.end - (before != nullptr ? before->end : 0);
  const std::size_t bytes = blocks_of(static_cast<std::size_t>(tokens)) * block_bytes_ + checkpoint_bytes_;
  node.last_use = ++uses_;
  node.priority = inflation_ + static_cast<double>(tokens) / static_cast<double>(bytes);
}

template <class Memory>
void PrefixCache<Memory>::report_eviction(const Node& node) const {
  Prefix<Memory> prefix{node.end, {}, node.checkpoint};
  std::vector<const Node*> path;
  for (const Node* at = &node; at->parent != nullptr; at = at->parent) path.push_back(at);
  std::reverse(path.begin(), path.end());
  std::vector<std::int32_t> text;
  for (const Node* at : path) {
    text.insert(text.end(), at->tokens->begin(), at->tokens->end());
    prefix.blocks.push_back(at->block);
  }
  text.resize(static_cast<std::size_t>(node.end));
  on_evict_(text, prefix);
}

template <class Memory>
void PrefixCache<Memory>::evict_one() {
  const auto least = std::min_element(checkpoints_.begin(), checkpoints_.end(), [](const Node* a, const Node* b) {
    return std::pair(a->priority, a->last_use) < std::pair(b->priority, b->last_use);
  });
  Node* node = *least;
  if (on_evict_) report_eviction(*node);
  *least = checkpoints_.back();
  checkpoints_.pop_back();
  inflation_ = node->priority;
  node->checkpoint.reset();
  bytes_ -= checkpoint_bytes_;
  ++evictions_;
  prune(node);
}

// Removes a node that leads to no checkpoint, and those above it.
template <class Memory>
void PrefixCache<Memory>::prune(Node* node) {
  while (node->parent != nullptr && node->checkpoint == nullptr && node->children.empty() &&
         node->short_blocks.empty()) {
    Node* parent = node->parent;
    auto& siblings = node->siblings();
    siblings.erase(siblings.find(*node->tokens));
    bytes_ -= block_bytes_;
    node = parent;
  }
}

template class PrefixCache<HostBytes>;
template class PrefixCache<DeviceBytes>;

}  // namespace thalweg::engine
