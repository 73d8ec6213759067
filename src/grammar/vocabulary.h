#pragma once

// The tokens of a model, in a trie over their bytes.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace thalweg::grammar {

class Vocabulary {
 public:
  // A node of the trie; nodes lie in preorder.
  struct Node {
    std::uint8_t byte;          // that leads to it
    std::uint32_t depth;        // bytes from the root; the root itself is not among the nodes
    std::uint32_t end;          // behind the nodes under it
    std::uint32_t first_token;  // its tokens lie in tokens() from here to the next node's
  };

  // The bytes of each token; an empty text cannot be written. `ends`: tokens that end an answer; `others`: tokens whose
  // bytes are no part of an answer's text, but may stand in free text. Throws Error if valid UTF-8 cannot be spelled.
  Vocabulary(std::vector<std::string_view> texts, std::vector<std::int32_t> ends, std::vector<std::int32_t> others);

  std::size_t size() const { return texts_.size(); }
  std::size_t mask_words() const { return (size() + 31) / 32; }
  std::string_view text(std::int32_t token) const { return texts_[static_cast<std::size_t>(token)]; }
  // A mask of those that have a text, and the others.
  std::span<const std::uint32_t> everything_but_ends() const { return everything_but_ends_; }
  std::span<const std::int32_t> ends() const { return ends_; }
  std::span<const std::int32_t> others() const { return others_; }
  std::size_t longest() const { return longest_; }  // bytes of a token

  std::uint32_t node_count() const { return static_cast<std::uint32_t>(nodes_.size() - 1); }
  const Node& node(std::uint32_t index) const { return nodes_[index]; }
  std::span<const std::int32_t> tokens(std::uint32_t index) const {
    return std::span(tokens_).subspan(nodes_[index].first_token,
                                      nodes_[index + 1].first_token - nodes_[index].first_token);
  }

 private:
  void build_trie();
  void build_mask();
  void check_bytes() const;

  std::vector<std::string_view> texts_;  // empty for ends and others
  std::vector<std::int32_t> ends_;
  std::vector<std::int32_t> others_;
  std::size_t longest_ = 0;
  std::vector<Node> nodes_;  // and one behind the last
  std::vector<std::int32_t> tokens_;
  std::vector<std::uint32_t> everything_but_ends_;
};

}  // namespace thalweg::grammar
