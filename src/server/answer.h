#pragma once

// What one call answers: its requests run, and a wire format writes what they give.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "server/api_call.h"
#include "server/content_tokens.h"
#include "thalweg/chat.h"
#include "thalweg/engine.h"

namespace thalweg::server {

struct AnswerRequest {
  Request request;
  std::size_t prompt = 0;              // which of the call's prompts
  std::optional<AnswerParser> parser;  // of a chat; without one all text is content
  bool thinking = false;               // the answer begins with thoughts
  bool calls_or_content = false;       // no call stands in or behind content, whatever it looks like
};

// A run of text of one kind, in the order in which the model wrote them.
struct Block {
  enum class Kind : std::uint8_t { kReasoning, kContent, kCall };
  Kind kind = Kind::kContent;
  std::string name;                     // of the function that is called
  std::string text;                     // of a call, its arguments
  std::vector<TokenLogprobs> logprobs;  // of content's tokens, if requested
};

// One of a call's answers so far.
struct Choice {
  RequestId id = 0;
  std::size_t prompt = 0;
  std::int64_t prompt_tokens = 0;
  std::optional<AnswerParser> parser;
  bool thinking = false;
  bool calls_or_content = false;
  std::vector<Block> blocks;
  ContentTokens content_tokens;
  std::vector<TokenLogprobs> logprobs;  // of all tokens
  std::int64_t reasoning_tokens = 0;    // before content and calls
  std::optional<FinishReason> finish;
  std::string stop;  // the one of Request::stop that ended it
  Usage usage;

  std::string text(Block::Kind kind) const;  // of all blocks of this kind
  bool has_calls() const;
};

// What was added to a choice: text to these blocks, of which the last ones may be new, and logprobs.
struct AnswerDelta {
  struct Part {
    std::size_t block;
    std::string text;
    std::vector<TokenLogprobs> logprobs;  // as Block's
  };
  std::vector<Part> parts;
  std::vector<TokenLogprobs> logprobs;
};

// Appends what a parser gave to the choice's blocks, and notes it in `delta`. `logprobs`: of the content's tokens.
void add_text(Choice& choice, const AnswerParser::Delta& text, AnswerDelta& delta,
              std::span<const TokenLogprobs> logprobs = {});

// A wire format. Its functions return bytes to send, and are called by one thread at a time, in order: for an answer at
// once body(); for a stream begin(), delta() and finish() of each choice, and end() or, after a failure, fail().
class AnswerFormat {
 public:
  virtual ~AnswerFormat() = default;
  virtual std::string body(std::span<const Choice> choices) = 0;
  virtual std::string error(int status, const std::string& message) = 0;
  virtual std::string begin(std::span<const Choice> choices) = 0;
  // `choice` has the delta already.
  virtual std::string delta(std::size_t index, const Choice& choice, const AnswerDelta& delta) = 0;
  virtual std::string finish(std::size_t index, const Choice& choice) = 0;
  virtual std::string end(std::span<const Choice> choices) = 0;
  virtual std::string fail(std::span<const Choice> choices, const std::string& message) = 0;
};

// A wire format of one choice whose stream is made of blocks: one begins where the last has ended.
class BlockFormat : public AnswerFormat {
 public:
  std::string delta(std::size_t index, const Choice& choice, const AnswerDelta& delta) final;
  std::string finish(std::size_t index, const Choice& choice) final;

 protected:
  virtual std::string begin_block(std::size_t index, const Block& block) = 0;
  virtual std::string block_text(std::size_t index, const Block& block, const AnswerDelta::Part& part) = 0;
  virtual std::string end_block(std::size_t index, const Block& block, bool cut_off) = 0;

 private:
  std::size_t begun_ = 0;  // blocks
};

// Throws Error and Refused before anything is answered. A client that goes cancels the requests.
void start_answer(const ApiCall& call, std::vector<AnswerRequest> requests, std::unique_ptr<AnswerFormat> format,
                  bool stream);

// Of the choices together. A prompt counts once, however many answers to it there are.
Usage total_usage(std::span<const Choice> choices);

}  // namespace thalweg::server
