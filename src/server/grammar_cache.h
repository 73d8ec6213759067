#pragma once

#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <utility>

#include "thalweg/grammar.h"

namespace thalweg::server {

// The grammars that were used last: requests of one program mostly have the same schema and tools, and the engine keeps
// token masks for each grammar.
class GrammarCache {
 public:
  Grammar find(const std::string& key, const std::function<Grammar()>& compile);

 private:
  std::mutex mutex_;
  std::list<std::pair<std::string, Grammar>> grammars_;  // the last used first
};

}  // namespace thalweg::server
