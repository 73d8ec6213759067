#pragma once

#include <cstddef>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "thalweg/engine.h"

namespace thalweg::server {

// Finds the tokens that the content of an answer is made of: the parser of answers leaves markup out, and holds text
// back until it knows what it is. So the text goes in byte by byte, with what the parser made of it.
class ContentTokens {
 public:
  // A token, whose text comes later. `bytes`: how long that is.
  void add(std::size_t bytes, TokenLogprobs token);
  // The next byte of the answer's text, and the content that came out then. Returns the tokens whose text begins in it;
  // each is returned once.
  std::vector<TokenLogprobs> take(char byte, std::string_view content);
  // The content that came out at the end.
  std::vector<TokenLogprobs> finish(std::string_view content);
  // What has come so far is not content.
  void drop();

 private:
  struct Token {
    TokenLogprobs logprobs;
    std::size_t unread = 0;  // bytes
    bool taken = false;
  };

  std::size_t owner_of_next();
  std::size_t find(std::string_view content) const;
  std::vector<TokenLogprobs> take_from(std::size_t at, std::size_t length);
  void forget(std::size_t bytes);

  std::deque<Token> tokens_;
  std::size_t first_ = 0;           // the number of tokens_.front()
  std::string held_;                // bytes of which it is not known what they are
  std::deque<std::size_t> owners_;  // the number of the token of each of them
};

}  // namespace thalweg::server
