#include "engine/prefix_cache.h"

#include <algorithm>
#include <utility>

namespace thalweg::engine {

struct PrefixCache::Node {
  Node* parent = nullptr;
  const Tokens* tokens = nullptr;  // the key in the parent's map
  std::int64_t blocks = 0;         // from the root to here
  Memory block;
  Memory checkpoint;
  double priority = 0;         // of the checkpoint
  std::uint64_t last_use = 0;  // of the checkpoint; decides between equal priorities
  std::map<Tokens, std::unique_ptr<Node>> children;
};

PrefixCache::PrefixCache(std::size_t block_bytes, std::size_t checkpoint_bytes, std::uint64_t budget)
    : block_bytes_(block_bytes),
      checkpoint_bytes_(checkpoint_bytes),
      budget_(budget),
      root_(std::make_unique<Node>()) {}

PrefixCache::~PrefixCache() { clear(); }

// Node by node from the leaves: a destructor that recurses would need a deep stack for a long text.
void PrefixCache::clear() {
  while (!checkpoints_.empty()) {
    Node* node = checkpoints_.back();
    checkpoints_.pop_back();
    node->checkpoint.reset();
    bytes_ -= checkpoint_bytes_;
    prune(node);
  }
}

PrefixCache::Tokens PrefixCache::tokens_of(std::span<const std::int32_t> text, std::size_t block) {
  Tokens tokens;
  std::copy_n(text.begin() + static_cast<std::ptrdiff_t>(block * kBlock), kBlock, tokens.begin());
  return tokens;
}

PrefixCache::Hit PrefixCache::find(std::span<const std::int32_t> text) {
  Hit hit;
  std::vector<Memory> blocks;
  Node* node = root_.get();
  Node* last = nullptr;
  for (std::size_t i = 0; (i + 1) * kBlock <= text.size(); ++i) {
    const auto child = node->children.find(tokens_of(text, i));
    if (child == node->children.end()) break;
    node = child->second.get();
    blocks.push_back(node->block);
    if (node->checkpoint != nullptr) last = node;
  }
  hit.known = node->blocks * kBlock;
  if (last == nullptr) return hit;
  touch(*last);
  hit.tokens = last->blocks * kBlock;
  hit.prefix.checkpoint = last->checkpoint;
  blocks.resize(static_cast<std::size_t>(last->blocks));
  hit.prefix.blocks = std::move(blocks);
  return hit;
}

std::uint64_t PrefixCache::missing_bytes(std::span<const std::int32_t> text) const {
  const std::size_t blocks = text.size() / kBlock;
  const Node* node = root_.get();
  for (std::size_t i = 0; i < blocks; ++i) {
    const auto child = node->children.find(tokens_of(text, i));
    if (child == node->children.end()) return (blocks - i) * block_bytes_ + checkpoint_bytes_;
    node = child->second.get();
  }
  return node->checkpoint != nullptr ? 0 : checkpoint_bytes_;
}

bool PrefixCache::make_room(std::span<const std::int32_t> text) {
  if (text.size() / kBlock * block_bytes_ + checkpoint_bytes_ > budget_) return false;
  // What is dropped may be a part of the text, which is then missing.
  while (bytes_ + missing_bytes(text) > budget_) evict_one();
  return true;
}

bool PrefixCache::insert(std::span<const std::int32_t> text, const BlockOf& block_of,
                         const CheckpointOf& checkpoint_of) {
  const std::size_t blocks = text.size() / kBlock;
  if (blocks == 0 || !make_room(text)) return false;
  Node* node = root_.get();
  // Nodes without a checkpoint below them must not stay behind.
  struct Guard {
    PrefixCache& cache;
    Node*& node;
    ~Guard() { cache.prune(node); }
  } guard{*this, node};
  for (std::size_t i = 0; i < blocks; ++i) {
    const Tokens tokens = tokens_of(text, i);
    auto child = node->children.find(tokens);
    if (child == node->children.end()) {
      auto created = std::make_unique<Node>();
      created->parent = node;
      created->blocks = node->blocks + 1;
      created->block = block_of(static_cast<std::int64_t>(i) * kBlock);
      child = node->children.emplace(tokens, std::move(created)).first;
      child->second->tokens = &child->first;
      bytes_ += block_bytes_;
    }
    node = child->second.get();
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

void PrefixCache::touch(Node& node) {
  const Node* before = node.parent;
  while (before != nullptr && before->checkpoint == nullptr) before = before->parent;
  const auto blocks = static_cast<double>(node.blocks - (before != nullptr ? before->blocks : 0));
  const double bytes = blocks * static_cast<double>(block_bytes_) + static_cast<double>(checkpoint_bytes_);
  node.last_use = ++uses_;
  node.priority = inflation_ + blocks * kBlock / bytes;
}

void PrefixCache::evict_one() {
  const auto least = std::min_element(checkpoints_.begin(), checkpoints_.end(), [](const Node* a, const Node* b) {
    return std::pair(a->priority, a->last_use) < std::pair(b->priority, b->last_use);
  });
  Node* node = *least;
  *least = checkpoints_.back();
  checkpoints_.pop_back();
  inflation_ = node->priority;
  node->checkpoint.reset();
  bytes_ -= checkpoint_bytes_;
  ++evictions_;
  prune(node);
}

// Removes a node that leads to no checkpoint, and those above it.
void PrefixCache::prune(Node* node) {
  while (node->parent != nullptr && node->checkpoint == nullptr && node->children.empty()) {
    Node* parent = node->parent;
    parent->children.erase(parent->children.find(*node->tokens));
    bytes_ -= block_bytes_;
    node = parent;
  }
}

}  // namespace thalweg::engine
