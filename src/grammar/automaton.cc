#include "grammar/automaton.h"

#include <algorithm>
#include <bitset>
#include <string>
#include <utility>

#include "thalweg/error.h"

namespace thalweg::grammar {
namespace {

constexpr std::size_t kMostStates = 1U << 20;

// The states that lead to each state, and the calls of each rule.
class Predecessors {
 public:
  explicit Predecessors(const std::vector<State>& states) : first_(states.size() + 1) {
    each(states, [&](StateId, StateId to) { ++first_[to + 1]; });
    for (std::size_t i = 1; i < first_.size(); ++i) first_[i] += first_[i - 1];
    from_.resize(first_.back());
    std::vector<std::uint32_t> used(first_.begin(), first_.end() - 1);
    each(states, [&](StateId from, StateId to) { from_[used[to]++] = from; });
  }

  std::span<const StateId> of(StateId to) const {
    return std::span(from_).subspan(first_[to], first_[to + 1] - first_[to]);
  }

 private:
  template <typename Function>
  static void each(const std::vector<State>& states, Function function) {
    for (StateId id = 0; id < states.size(); ++id) {
      function(id, states[id].next);
      if (states[id].other != kNowhere) function(id, states[id].other);
    }
  }

  std::vector<std::uint32_t> first_;
  std::vector<StateId> from_;
};

std::size_t shared_beginning(std::string_view a, std::string_view b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

// How much of the mark a text ends with that ended with `matched` bytes of it, after one more byte.
std::size_t matched_after(std::string_view mark, std::size_t matched, unsigned byte) {
  const std::string text = std::string(mark.substr(0, matched)) + static_cast<char>(byte);
  std::size_t length = text.size();
  while (!text.ends_with(mark.substr(0, length))) --length;
  return length;
}

}  // namespace

AutomatonBuilder::AutomatonBuilder() {
  automaton_.bounds_.push_back({});
  add({.kind = StateKind::kNever});
  add({.kind = StateKind::kEnd});
}

StateId AutomatonBuilder::add(State state) {
  if (automaton_.states_.size() == kMostStates) {
    throw Error("grammar", "size", "at most " + std::to_string(kMostStates) + " states", "more");
  }
  automaton_.states_.push_back(state);
  return static_cast<StateId>(automaton_.states_.size() - 1);
}

StateId AutomatonBuilder::byte(unsigned char low, unsigned char high, StateId next) {
  if (next == kNowhere) return kNowhere;
  return add({.kind = StateKind::kByte, .low = low, .high = high, .next = next});
}

StateId AutomatonBuilder::bytes(std::string_view any_of, StateId next) {
  StateId first = kNowhere;
  for (const char c : any_of) {
    const auto value = static_cast<unsigned char>(c);
    first = either(byte(value, value, next), first);
  }
  return first;
}

StateId AutomatonBuilder::text(std::string_view text, StateId next) {
  for (std::size_t i = text.size(); i-- > 0;) next = bytes(text.substr(i, 1), next);
  return next;
}

StateId AutomatonBuilder::one_of(std::span<const std::string_view> texts, StateId next) {
  StateId first = kNowhere;
  std::vector<std::string_view> rests;
  for (std::size_t i = 0; i < texts.size();) {
    if (texts[i].empty()) {
      first = next;
      ++i;
      continue;
    }
    std::size_t last = i;
    while (last + 1 < texts.size() && texts[last + 1].starts_with(texts[i].front())) ++last;
    const std::size_t shared = shared_beginning(texts[i], texts[last]);
    const std::string_view beginning = texts[i].substr(0, shared);
    rests.clear();
    for (; i <= last; ++i) rests.push_back(texts[i].substr(shared));
    first = either(text(beginning, rests.size() == 1 ? next : one_of(std::vector(rests), next)), first);
  }
  return first;
}

StateId AutomatonBuilder::either(StateId a, StateId b) {
  if (a == kNowhere || a == b) return b;
  if (b == kNowhere) return a;
  return add({.kind = StateKind::kEither, .next = a, .other = b});
}

StateId AutomatonBuilder::call(StateId rule, StateId next, Bounds bounds) {
  if (next == kNowhere || bounds.least > bounds.most) return kNowhere;
  std::uint32_t index = 0;
  if (bounds != Bounds()) {
    index = static_cast<std::uint32_t>(automaton_.bounds_.size());
    automaton_.bounds_.push_back(bounds);
  }
  return add({.kind = StateKind::kCall, .next = next, .other = rule, .bounds = index});
}

void AutomatonBuilder::define(StateId reserved, StateId is) { automaton_.states_[reserved].next = is; }

StateId AutomatonBuilder::utf8(char32_t low, char32_t high, StateId next) {
  constexpr char32_t kLasts[] = {0x7f, 0x7ff, 0xd7ff, 0xdfff, 0xffff, 0x10ffff};
  for (const char32_t last : kLasts) {
    if (low <= last && high > last) return either(utf8(low, last, next), utf8(last + 1, high, next));
  }
  if (low > high || (low >= 0xd800 && high <= 0xdfff)) return kNowhere;
  if (high <= 0x7f) return byte(static_cast<unsigned char>(low), static_cast<unsigned char>(high), next);
  // Ranges whose trailing bytes are all free, or that differ in the last byte only, are one sequence of byte ranges.
  for (int bits = 6; bits <= 18; bits += 6) {
    const char32_t mask = (char32_t{1} << bits) - 1;
    if ((low & ~mask) == (high & ~mask)) break;
    if ((low & mask) != 0) return either(utf8(low, low | mask, next), utf8((low | mask) + 1, high, next));
    if ((high & mask) != mask) {
      return either(utf8(low, (high & ~mask) - 1, next), utf8(high & ~mask, high, next));
    }
  }
  const int trailing = high <= 0x7ff ? 1 : high <= 0xffff ? 2 : 3;
  for (int i = 0; i < trailing; ++i) {
    const auto first = static_cast<unsigned char>(0x80 | (low >> 6 * i & 0x3f));
    const auto last = static_cast<unsigned char>(0x80 | (high >> 6 * i & 0x3f));
    next = byte(first, last, next);
  }
  const unsigned lead = trailing == 1 ? 0xc0 : trailing == 2 ? 0xe0 : 0xf0;
  return byte(static_cast<unsigned char>(lead | low >> 6 * trailing),
              static_cast<unsigned char>(lead | high >> 6 * trailing), next);
}

// Both follow the automaton of Knuth, Morris and Pratt: its states are how much of the mark the text ends with.
StateId AutomatonBuilder::free_until(std::string_view mark, bool end_anywhere, StateId next) {
  const StateId first = static_cast<StateId>(size());
  const std::vector<StateId> states = reserve_until(mark, next);
  for (std::size_t matched = 0; matched < mark.size(); ++matched) {
    const StateId here = end_anywhere ? kRuleEnd : kNowhere;
    define(states[matched], either(bytes_until(mark, matched, {0, 255}, states), here));
  }
  automaton_.free_first_ = first;
  automaton_.free_last_ = static_cast<StateId>(size());
  automaton_.free_start_ = states.front();
  return states.front();
}

StateId AutomatonBuilder::text_until(std::string_view mark, StateId next) {
  const std::vector<StateId> states = reserve_until(mark, next);
  const StateId beyond_ascii = utf8(0x80, 0x10ffff, states.front());
  for (std::size_t matched = 0; matched < mark.size(); ++matched) {
    StateId here = beyond_ascii;
    for (const ByteRange range : {ByteRange{'\t', '\n'}, {'\r', '\r'}, {' ', 0x7f}}) {
      here = either(bytes_until(mark, matched, range, states), here);
    }
    define(states[matched], here);
  }
  return states.front();
}

std::vector<StateId> AutomatonBuilder::reserve_until(std::string_view mark, StateId next) {
  std::vector<StateId> states;
  for (std::size_t i = 0; i < mark.size(); ++i) states.push_back(reserve());
  states.push_back(next);
  return states;
}

StateId AutomatonBuilder::bytes_until(std::string_view mark, std::size_t matched, ByteRange range,
                                      std::span<const StateId> states) {
  StateId here = kNowhere;
  for (unsigned value = range.low; value <= range.high;) {
    const std::size_t length = matched_after(mark, matched, value);
    unsigned last = value;
    while (last < range.high && matched_after(mark, matched, last + 1) == length) ++last;
    here = either(byte(static_cast<unsigned char>(value), static_cast<unsigned char>(last), states[length]), here);
    value = last + 1;
  }
  return here;
}

Automaton AutomatonBuilder::finish(StateId start, std::string source) {
  automaton_.source_ = std::move(source);
  automaton_.start_ = start;
  find_heights();
  if (automaton_.states_[start].height == kUnreachable) {
    throw Error("grammar", "schema", "one that some text of at most " + std::to_string(kMostFrames) + " levels fits",
                "one that none does");
  }
  find_calls();
  find_byte_classes();
  return std::move(automaton_);
}

// Breadth first from the ends: a state has a height as soon as enough of what follows it has one.
void AutomatonBuilder::find_heights() {
  std::vector<State>& states = automaton_.states_;
  const Predecessors predecessors(states);
  for (State& state : states) state.height = kUnreachable;
  std::vector<StateId> now = {kRuleEnd};
  std::vector<StateId> callers;  // whose rules got their height at this level
  for (int level = 0; level <= kMostFrames && !now.empty(); ++level) {
    while (!now.empty()) {
      const StateId id = now.back();
      now.pop_back();
      if (states[id].height != kUnreachable) continue;
      states[id].height = static_cast<std::uint8_t>(level);
      for (const StateId from : predecessors.of(id)) {
        const State& state = states[from];
        if (state.kind != StateKind::kCall) {
          now.push_back(from);
          continue;
        }
        const bool returns = states[state.next].height != kUnreachable;
        const bool callable = states[state.other].height < level;
        if (returns && callable) now.push_back(from);
        if (states[state.other].height == level) callers.push_back(from);
      }
    }
    // At the next level the rules of this one may be called.
    for (const StateId caller : callers) {
      if (states[states[caller].next].height != kUnreachable) now.push_back(caller);
    }
    callers.clear();
  }
}

void AutomatonBuilder::find_calls() {
  std::vector<State>& states = automaton_.states_;
  const Predecessors predecessors(states);
  std::vector<StateId> open;
  for (StateId id = 0; id < states.size(); ++id) {
    if (states[id].kind == StateKind::kCall) open.push_back(id);
  }
  while (!open.empty()) {
    const StateId id = open.back();
    open.pop_back();
    if (std::exchange(states[id].calls, true)) continue;
    for (const StateId from : predecessors.of(id)) {
      if (!states[from].calls && states[from].kind != StateKind::kCall) open.push_back(from);
    }
  }
}

void AutomatonBuilder::find_byte_classes() {
  std::bitset<257> begins;
  begins[0] = true;
  for (const State& state : automaton_.states_) {
    if (state.kind != StateKind::kByte) continue;
    begins[state.low] = true;
    begins[std::size_t{state.high} + 1] = true;
  }
  std::size_t count = 0;
  for (std::size_t value = 0; value < 256; ++value) {
    if (begins[value]) ++count;
    automaton_.byte_classes_[value] = static_cast<std::uint8_t>(count - 1);
  }
  automaton_.byte_class_count_ = count;
}

}  // namespace thalweg::grammar
