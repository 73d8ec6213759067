#pragma once

// A pushdown automaton over the bytes of an answer: a nondeterministic automaton whose states may call rules, which are
// automata of their own, and go on behind them. Built from back to front: every function of AutomatonBuilder takes the
// state that comes next and returns the one to begin with.

#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace thalweg::grammar {

using StateId = std::uint32_t;

constexpr StateId kNowhere = 0;  // no text leads on from here
constexpr StateId kRuleEnd = 1;  // of a rule, or of the grammar

enum class StateKind : std::uint8_t {
  kNever,
  kEnd,
  kByte,       // reads a byte from low to high
  kEither,     // goes on at `next` and at `other`
  kCall,       // goes on at `other`, and at `next` after the end of that rule
  kCharacter,  // counts a character of a bounded string; only while one may follow
  kEnough,     // only if the string has its least number of characters
};

// How many characters a string may have.
struct Bounds {
  static constexpr std::uint32_t kUnlimited = std::numeric_limits<std::uint32_t>::max();
  std::uint32_t least = 0;
  std::uint32_t most = kUnlimited;

  bool operator==(const Bounds&) const = default;
};

struct State {
  StateKind kind = StateKind::kNever;
  std::uint8_t low = 0;
  std::uint8_t high = 0;
  std::uint8_t height = 0;  // frames that the shortest way to the rule's end needs; kUnreachable: there is no way
  bool calls = false;       // some state that follows in the rule is a call
  StateId next = kNowhere;
  StateId other = kNowhere;
  std::uint32_t bounds = 0;  // of a call, in the automaton's list
};

// Frames on the stack: how deep the values of an answer nest, and strings and white space on top.
constexpr int kMostFrames = 64;
constexpr std::uint8_t kUnreachable = kMostFrames + 1;

class Automaton {
 public:
  const State& state(StateId id) const { return states_[id]; }
  std::size_t size() const { return states_.size(); }
  StateId start() const { return start_; }
  Bounds bounds(const State& call) const { return bounds_[call.bounds]; }

  // What it was compiled from: automata of one source are equal.
  const std::string& source() const { return source_; }

  // Bytes that no state distinguishes have one class.
  std::size_t byte_class(std::uint8_t byte) const { return byte_classes_[byte]; }
  std::size_t byte_class_count() const { return byte_class_count_; }

  // Free text, in which tokens without text of their own may stand; a state of it reads any byte.
  bool is_free(StateId id) const { return id >= free_first_ && id < free_last_; }
  StateId free_start() const { return free_start_; }

 private:
  friend class AutomatonBuilder;

  std::string source_;
  std::vector<State> states_;
  std::vector<Bounds> bounds_;
  StateId start_ = kNowhere;
  StateId free_first_ = 0;
  StateId free_last_ = 0;
  StateId free_start_ = kNowhere;
  std::array<std::uint8_t, 256> byte_classes_{};
  std::size_t byte_class_count_ = 0;
};

class AutomatonBuilder {
 public:
  AutomatonBuilder();

  StateId byte(unsigned char low, unsigned char high, StateId next);
  StateId bytes(std::string_view any_of, StateId next);
  StateId text(std::string_view text, StateId next);
  // One of the texts, which are sorted and differ.
  StateId one_of(std::span<const std::string_view> texts, StateId next);
  StateId either(StateId a, StateId b);
  StateId maybe(StateId a, StateId next) { return either(a, next); }
  StateId call(StateId rule, StateId next, Bounds bounds = {});
  StateId character(StateId next) { return add({.kind = StateKind::kCharacter, .next = next}); }
  StateId enough(StateId next) { return add({.kind = StateKind::kEnough, .next = next}); }
  // Any code point but surrogates, in UTF-8.
  StateId utf8(char32_t low, char32_t high, StateId next);

  // A state to loop back to, or the start of a rule, defined later.
  StateId reserve() { return add({.kind = StateKind::kEither}); }
  void define(StateId reserved, StateId is);

  // Any text that does not hold `mark`, which then leads to `next`; `end_anywhere`: or ends the grammar. Only one.
  StateId free_until(std::string_view mark, bool end_anywhere, StateId next);
  // UTF-8 without control characters but white space, up to the first `mark`.
  StateId text_until(std::string_view mark, StateId next);

  std::size_t size() const { return automaton_.states_.size(); }
  // Throws Error if no text leads from start to the end.
  Automaton finish(StateId start, std::string source);

 private:
  struct ByteRange {
    unsigned low;
    unsigned high;
  };

  StateId add(State state);
  std::vector<StateId> reserve_until(std::string_view mark, StateId next);
  StateId bytes_until(std::string_view mark, std::size_t matched, ByteRange range, std::span<const StateId> states);
  void find_heights();
  void find_calls();
  void find_byte_classes();

  Automaton automaton_;
};

}  // namespace thalweg::grammar
