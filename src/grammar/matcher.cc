#include "grammar/matcher.h"

#include <algorithm>
#include <tuple>
#include <utility>

namespace thalweg::grammar {
namespace {

// Ways to read one text, beyond which further ones are not followed: each of those that are leads to an end.
constexpr std::size_t kMostItems = 1U << 15;

std::size_t mix(std::size_t hash, std::size_t value) {
  hash = (hash ^ value) * 0x9e3779b97f4a7c15U;
  return hash ^ hash >> 29;
}

std::size_t hash_of(const Item& item) {
  const std::size_t place = std::size_t{item.state} << 32 | item.stack;
  return mix(mix(0, place), std::size_t{item.bounds.least} << 32 | item.bounds.most);
}

bool before(const Item& a, const Item& b) {
  return std::tie(a.stack, a.state, a.bounds.least, a.bounds.most) <
         std::tie(b.stack, b.state, b.bounds.least, b.bounds.most);
}

}  // namespace

void ItemSet::clear() {
  items_.clear();
  ++round_;
}

std::size_t ItemSet::find(const Item& item) const {
  std::size_t slot = hash_of(item) % slots_.size();
  while (slots_[slot].round == round_ && !(items_[slots_[slot].index] == item)) slot = (slot + 1) % slots_.size();
  return slot;
}

bool ItemSet::add(const Item& item) {
  const std::size_t slot = find(item);
  if (slots_[slot].round == round_) return false;
  slots_[slot] = {static_cast<std::uint32_t>(items_.size()), round_};
  items_.push_back(item);
  if (items_.size() * 2 > slots_.size()) grow();
  return true;
}

void ItemSet::grow() {
  slots_.assign(slots_.size() * 4, {});
  for (std::size_t i = 0; i < items_.size(); ++i) slots_[find(items_[i])] = {static_cast<std::uint32_t>(i), round_};
}

Matcher::Matcher(const Automaton& automaton) : automaton_(automaton), classes_(automaton.byte_class_count()) {
  for (int depth = 0; depth <= kMostFrames; ++depth) frames_.push_back({kNowhere, 0, depth});
  visit({automaton.start(), 0, {}});
  start_ = closure();
}

// A state is only entered if the frames that are left suffice to its rule's end: so every item leads to an end.
void Matcher::visit(const Item& item) {
  const int frames = frames_[item.stack].depth + automaton_.state(item.state).height;
  if (frames <= kMostFrames && visited_.items().size() < kMostItems) visited_.add(item);
}

StackId Matcher::push(StateId returns_to, StackId parent) {
  const std::uint64_t key = std::uint64_t{parent} << 32 | returns_to;
  const auto [found, is_new] = pushed_.try_emplace(key, static_cast<StackId>(frames_.size()));
  if (is_new) frames_.push_back({returns_to, parent, frames_[parent].depth + 1});
  return found->second;
}

ConfigId Matcher::closure() {
  std::vector<Item> reading;
  bool complete = false;
  std::size_t done = 0;
  while (done < visited_.items().size()) {
    const Item item = visited_.items()[done++];
    const State& state = automaton_.state(item.state);
    Item next = {state.next, item.stack, item.bounds};
    switch (state.kind) {
      case StateKind::kNever:
        break;
      case StateKind::kByte:
        reading.push_back(item);
        break;
      case StateKind::kEither:
        visit(next);
        visit({state.other, item.stack, item.bounds});
        break;
      case StateKind::kCharacter:
        if (item.bounds.most == 0) break;
        if (next.bounds.most != Bounds::kUnlimited) --next.bounds.most;
        if (next.bounds.least > 0) --next.bounds.least;
        visit(next);
        break;
      case StateKind::kEnough:
        if (item.bounds.least == 0) visit({state.next, item.stack, {}});
        break;
      case StateKind::kCall:
        // Both the rule and what follows it must have the frames that they need.
        if (frames_[item.stack].depth + state.height > kMostFrames) break;
        // What is called last returns to where its caller does.
        visit({state.other, state.next == kRuleEnd ? item.stack : push(state.next, item.stack),
               automaton_.bounds(state)});
        break;
      case StateKind::kEnd:
        if (item.stack <= kMostFrames) {
          complete = true;
        } else {
          visit({frames_[item.stack].returns_to, frames_[item.stack].parent, {}});
        }
        break;
    }
  }
  visited_.clear();
  return intern(std::move(reading), complete);
}

ConfigId Matcher::intern(std::vector<Item> items, bool complete) {
  if (items.empty() && !complete) return kDead;
  std::sort(items.begin(), items.end(), before);
  items.erase(std::unique(items.begin(), items.end()), items.end());
  std::size_t hash = complete ? 1 : 0;
  for (const Item& item : items) hash = mix(hash, hash_of(item));
  const auto [first, last] = by_hash_.equal_range(hash);
  for (auto found = first; found != last; ++found) {
    const Config& config = configs_[static_cast<std::size_t>(found->second)];
    if (config.complete == complete && config.items == items) return found->second;
  }
  const auto id = static_cast<ConfigId>(configs_.size());
  by_hash_.emplace(hash, id);
  item_count_ += items.size();
  configs_.push_back({std::move(items), complete});
  next_.resize(next_.size() + classes_, kUnknown);
  return id;
}

ConfigId Matcher::find_step(ConfigId config, std::uint8_t byte) {
  for (const Item& item : items(config)) {
    const State& state = automaton_.state(item.state);
    if (state.low <= byte && byte <= state.high) visit({state.next, item.stack, item.bounds});
  }
  const ConfigId found = closure();
  next_[static_cast<std::size_t>(config) * classes_ + automaton_.byte_class(byte)] = found;
  return found;
}

ConfigId Matcher::skip(ConfigId config) {
  if (!is_free(config)) return kDead;
  visit({automaton_.free_start(), 0, {}});
  return closure();
}

bool Matcher::is_free(ConfigId config) const {
  const std::span<const Item> all = items(config);
  return std::any_of(all.begin(), all.end(), [&](const Item& item) { return automaton_.is_free(item.state); });
}

ConfigId Matcher::core(std::span<const Item> items, std::size_t longest) {
  const auto beyond = static_cast<std::uint32_t>(longest) + 1;
  std::vector<Item> cut;
  for (Item item : items) {
    const bool calls = automaton_.state(item.state).calls;
    item.stack = calls ? static_cast<StackId>(frames_[item.stack].depth) : 0;
    if (item.bounds.most >= beyond) item.bounds.most = Bounds::kUnlimited;
    item.bounds.least = std::min(item.bounds.least, beyond);
    cut.push_back(item);
  }
  return intern(std::move(cut), false);
}

ConfigId Matcher::after_return(StackId stack) {
  if (stack <= kMostFrames) return kDead;
  visit({frames_[stack].returns_to, frames_[stack].parent, {}});
  return closure();
}

std::size_t Matcher::memory() const {
  return item_count_ * sizeof(Item) + next_.size() * sizeof(ConfigId) + configs_.size() * (sizeof(Config) + 64) +
         frames_.size() * (sizeof(Frame) + 48);
}

}  // namespace thalweg::grammar
