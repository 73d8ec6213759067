#include "server/grammar_cache.h"

#include <algorithm>
#include <cstddef>

namespace thalweg::server {
namespace {

constexpr std::size_t kMaxGrammars = 32;

}  // namespace

Grammar GrammarCache::find(const std::string& key, const std::function<Grammar()>& compile) {
  {
    const std::lock_guard lock(mutex_);
    const auto found =
        std::find_if(grammars_.begin(), grammars_.end(), [&](const auto& entry) { return entry.first == key; });
    if (found != grammars_.end()) {
      grammars_.splice(grammars_.begin(), grammars_, found);
      return found->second;
    }
  }
  Grammar grammar = compile();
  const std::lock_guard lock(mutex_);
  grammars_.emplace_front(key, grammar);
  if (grammars_.size() > kMaxGrammars) grammars_.pop_back();
  return grammar;
}

}  // namespace thalweg::server
