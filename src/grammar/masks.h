#pragma once

// Which tokens may come next: a bit for each token of the vocabulary, cached by what the matcher may be reading.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "grammar/matcher.h"
#include "grammar/vocabulary.h"

namespace thalweg::grammar {

using Mask = std::vector<std::uint32_t>;

// Shared by all who follow one grammar with one vocabulary; used by one thread.
class MaskCache {
 public:
  MaskCache(std::shared_ptr<const Automaton> automaton, std::shared_ptr<const Vocabulary> vocabulary);

  const std::string& source() const { return automaton_->source(); }
  Matcher& matcher() { return *matcher_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }
  std::shared_ptr<const Mask> mask(ConfigId config);

  // Forgets everything if it takes too much memory. The configs of an earlier generation are void.
  void trim();
  std::uint64_t generation() const { return generation_; }

 private:
  // The tokens that one rule alone can read, and the nodes of the trie at which the rule may have ended.
  struct Core {
    Mask mask;
    std::vector<std::uint32_t> ends;
  };

  const Core& core(ConfigId config);
  // Adds the tokens under the nodes from `first` to `last`, before which lie `depth` bytes.
  void walk(ConfigId config, std::uint32_t first, std::uint32_t last, std::uint32_t depth, Mask& mask,
            std::vector<std::uint32_t>* ends);
  void add_tokens(std::uint32_t node, Mask& mask) const;

  std::shared_ptr<const Automaton> automaton_;
  std::shared_ptr<const Vocabulary> vocabulary_;
  std::unique_ptr<Matcher> matcher_;
  std::unordered_map<ConfigId, Core> cores_;
  std::unordered_map<ConfigId, std::shared_ptr<const Mask>> masks_;
  std::vector<ConfigId> path_;  // of walk(), by depth
  std::uint64_t generation_ = 1;
};

// Follows a grammar through one answer.
class Follower {
 public:
  // May be called while another thread uses the cache.
  // `free_until`: everything but ends is allowed up to this token, behind which the grammar begins; -1: at once.
  explicit Follower(std::shared_ptr<MaskCache> cache, std::int32_t free_until = -1);

  std::span<const std::uint32_t> allowed();
  // Throws Error for a token that is not allowed.
  void accept(std::int32_t token);
  bool is_complete();

 private:
  void update();
  ConfigId after(ConfigId config, std::int32_t token);

  std::shared_ptr<MaskCache> cache_;
  std::int32_t free_until_;           // -1: it has come
  std::vector<std::int32_t> tokens_;  // since then
  ConfigId config_ = kDead;
  std::uint64_t generation_ = 0;  // of config_; the cache's begin with 1
  std::shared_ptr<const Mask> mask_;
};

}  // namespace thalweg::grammar
