#pragma once

// Runs an automaton: the sets of states and stacks that it may be in, made deterministic as far as they are visited.

#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "grammar/automaton.h"

namespace thalweg::grammar {

using StackId = std::uint32_t;

// One of the ways to read the text so far: a state that reads the next byte, and where its rule returns to.
struct Item {
  StateId state = kNowhere;
  StackId stack = 0;
  Bounds bounds;  // of the characters that the string may still have

  bool operator==(const Item&) const = default;
};

// A set of items, in the order in which they were added.
class ItemSet {
 public:
  ItemSet() : slots_(64) {}

  void clear();
  bool add(const Item& item);  // false: it is there already
  const std::vector<Item>& items() const { return items_; }

 private:
  struct Slot {
    std::uint32_t index = 0;
    std::uint32_t round = 0;  // the slot is free unless it is of this round
  };
  void grow();
  std::size_t find(const Item& item) const;

  std::vector<Item> items_;
  std::vector<Slot> slots_;
  std::uint32_t round_ = 1;
};

using ConfigId = std::int32_t;
constexpr ConfigId kDead = -1;

// Not for several threads at once.
class Matcher {
 public:
  explicit Matcher(const Automaton& automaton);

  const Automaton& automaton() const { return automaton_; }
  ConfigId start() const { return start_; }
  // After one more byte; kDead: it must not come.
  ConfigId step(ConfigId config, std::uint8_t byte) {
    const ConfigId known = next_[static_cast<std::size_t>(config) * classes_ + automaton_.byte_class(byte)];
    return known != kUnknown ? known : find_step(config, byte);
  }
  // Where a token without text leads from free text.
  ConfigId skip(ConfigId config);

  std::span<const Item> items(ConfigId config) const { return configs_[static_cast<std::size_t>(config)].items; }
  // Whether the text may end here.
  bool is_complete(ConfigId config) const { return configs_[static_cast<std::size_t>(config)].complete; }
  bool is_free(ConfigId config) const;

  // The items with their stack cut off: what the innermost rule alone reads. Bounds beyond `longest` characters, and
  // the depth of the stack where it makes no difference, are left out, so that many items have the same core.
  ConfigId core(std::span<const Item> items, std::size_t longest);
  // Behind the end of the innermost rule; kDead at the bottom of the stack.
  ConfigId after_return(StackId stack);

  std::size_t config_count() const { return configs_.size(); }
  std::size_t memory() const;

 private:
  static constexpr ConfigId kUnknown = -2;

  struct Config {
    std::vector<Item> items;
    bool complete = false;
  };
  // The bottoms of the stacks of every depth come first.
  struct Frame {
    StateId returns_to;
    StackId parent;
    int depth;
  };

  ConfigId find_step(ConfigId config, std::uint8_t byte);
  StackId push(StateId returns_to, StackId parent);
  void visit(const Item& item);
  void expand();
  ConfigId intern(std::vector<Item> items, bool complete);
  // The items that were visited and all that they lead to without a byte.
  ConfigId closure();

  const Automaton& automaton_;
  const std::size_t classes_;
  std::vector<Frame> frames_;
  std::unordered_map<std::uint64_t, StackId> pushed_;
  std::vector<Config> configs_;
  std::vector<ConfigId> next_;  // of each config and class of bytes
  std::unordered_multimap<std::size_t, ConfigId> by_hash_;
  ItemSet visited_;
  ConfigId start_ = kDead;
  std::size_t item_count_ = 0;
};

}  // namespace thalweg::grammar
