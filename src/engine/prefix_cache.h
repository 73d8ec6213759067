#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace thalweg::engine {

// Tokens of a block. Positions in texts are multiples of it as far as possible.
constexpr std::int64_t kBlock = 64;

// Of so many tokens those in whole blocks.
constexpr std::int64_t whole_blocks(std::int64_t tokens) { return tokens / kBlock * kBlock; }

// A beginning of a text. `Memory` is a shared pointer to what is kept, wherever that lies: it lives as long as somebody
// uses it, also when the cache has dropped it.
template <class Memory>
struct Prefix {
  std::int64_t tokens = 0;
  std::vector<Memory> blocks;  // the last may be a short one
  Memory checkpoint;           // null if there are no blocks
};

using HostBytes = std::shared_ptr<const std::byte[]>;

// What beginnings of texts leave in a model, so that they are computed once. A trie whose edges are blocks of kBlock
// tokens: a node holds the keys and values of its block, and some nodes a checkpoint, the recurrent state after it.
// Only a checkpoint can be continued: keys beyond the last one are of no use without the state. Positions are multiples
// of kBlock from the text's start, so that a continued run cuts the rest as a cold one does; but a text may also end
// within a block, as answers do. Nothing goes on from such a short block, a leaf that always has a checkpoint; it takes
// the memory of a whole one.
//
// The budget is bytes. What is dropped first is the checkpoint that saves the fewest tokens per byte, with those that
// were used longer ago counting less (GreedyDual-Size: Cao and Irani 1997), and the blocks that only it needed.
template <class Memory>
class PrefixCache {
 public:
  // Called with a checkpoint that is about to be dropped to make room, and its text.
  using OnEvict = std::function<void(std::span<const std::int32_t> text, const Prefix<Memory>& prefix)>;

  // `block_bytes` are those of the keys and values of a block, `checkpoint_bytes` of a checkpoint.
  PrefixCache(std::size_t block_bytes, std::size_t checkpoint_bytes, std::uint64_t budget, OnEvict on_evict = {});
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  struct Hit {
    std::int64_t tokens = 0;  // up to the last checkpoint
    std::int64_t known = 0;   // whole blocks whose keys and values are known: other texts diverge from here on
    Prefix<Memory> prefix;    // of `tokens`
  };
  // The longest checkpoint of the text's beginning, which counts as used.
  Hit find(std::span<const std::int32_t> text);

  // Give a block or the checkpoint of the inserted text; `count` is below kBlock for a short block.
  using BlockOf = std::function<Memory(std::int64_t first_token, std::int64_t count)>;
  using CheckpointOf = std::function<Memory()>;
  // Adds a checkpoint after a text; false if it exceeds the budget by itself. Strong guarantee, but for what was
  // dropped to make room.
  bool insert(std::span<const std::int32_t> text, const BlockOf& block_of, const CheckpointOf& checkpoint_of);
  bool insert(std::span<const std::int32_t> text, const Prefix<Memory>& prefix);

  void clear();

  std::uint64_t bytes() const { return bytes_; }
  std::size_t checkpoints() const { return checkpoints_.size(); }
  std::uint64_t evictions() const { return evictions_; }

 private:
  using Tokens = std::array<std::int32_t, kBlock>;  // of a short block: filled up with -1
  struct Node;

  static std::size_t blocks_of(std::size_t tokens) { return (tokens + kBlock - 1) / kBlock; }
  static Tokens tokens_of(std::span<const std::int32_t> text, std::size_t block);
  static Node* longest_short_block(const Node& node, std::span<const std::int32_t> rest);
  static Node* child_of(const Node& node, const Tokens& tokens);
  std::uint64_t missing_bytes(std::span<const std::int32_t> text) const;
  bool make_room(std::span<const std::int32_t> text);
  void touch(Node& node);
  void report_eviction(const Node& node) const;
  void evict_one();
  void prune(Node* node);

  std::size_t block_bytes_;
  std::size_t checkpoint_bytes_;
  std::uint64_t budget_;
  OnEvict on_evict_;
  std::unique_ptr<Node> root_;
  std::vector<Node*> checkpoints_;
  std::uint64_t bytes_ = 0;
  std::uint64_t evictions_ = 0;
  std::uint64_t uses_ = 0;
  double inflation_ = 0;  // the priority of what was dropped last
};

}  // namespace thalweg::engine
