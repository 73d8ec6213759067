#include "server/answer.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace thalweg::server {
namespace {

bool has_failed(FinishReason reason) { return reason == FinishReason::kError || reason == FinishReason::kCancelled; }

// The block that a call's next text belongs to.
std::size_t block_of_call(std::vector<Block>& blocks, const AnswerParser::CallDelta& call) {
  std::size_t calls = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    if (blocks[i].kind == Block::Kind::kCall && calls++ == call.index) return i;
  }
  blocks.push_back({Block::Kind::kCall, call.name, {}, {}});
  return blocks.size() - 1;
}

std::size_t block_of_text(std::vector<Block>& blocks, Block::Kind kind) {
  if (blocks.empty() || blocks.back().kind != kind) blocks.push_back({kind, {}, {}, {}});
  return blocks.size() - 1;
}

bool has_content(const Choice& choice) {
  return !choice.blocks.empty() && choice.blocks.back().kind == Block::Kind::kContent;
}

// Byte by byte, so that each token is known by where its text went.
void add_bytes(Choice& choice, const std::string& text, AnswerDelta& delta) {
  for (const char byte : text) {
    const bool parse = !choice.calls_or_content || !has_content(choice);
    const AnswerParser::Delta part = parse ? choice.parser->push({&byte, 1}) : AnswerParser::Delta{{}, {byte}, {}};
    const std::vector<TokenLogprobs> logprobs = choice.content_tokens.take(byte, part.content);
    if (!part.reasoning.empty() || !part.calls.empty()) choice.content_tokens.drop();
    add_text(choice, part, delta, logprobs);
  }
}

class Answer : public std::enable_shared_from_this<Answer> {
 public:
  Answer(const ApiCall& call, std::unique_ptr<AnswerFormat> format, bool stream)
      : engine_(call.engine),
        response_(call.response),
        usage_(call.usage),
        format_(std::move(format)),
        stream_(stream) {}

  void start(std::vector<AnswerRequest> requests);

 private:
  void submit(std::vector<AnswerRequest> requests);
  void cancel();
  void take(std::size_t index, const Output& output);
  AnswerDelta add(Choice& choice, const Output& output);
  void end();

  Engine& engine_;
  const std::shared_ptr<HttpResponse> response_;
  const std::shared_ptr<UsageSink> usage_;
  const std::unique_ptr<AnswerFormat> format_;
  const bool stream_;
  std::mutex mutex_;
  bool abandoned_ = false;  // a request was refused, and the call with it
  std::vector<Choice> choices_;
  std::string error_;
};

void Answer::start(std::vector<AnswerRequest> requests) {
  {
    // Outputs wait until all requests are accepted: one that is refused refuses the call.
    const std::lock_guard lock(mutex_);
    submit(std::move(requests));
    if (stream_) {
      response_->begin_stream("text/event-stream; charset=utf-8", {{"Cache-Control", "no-cache"}});
      response_->write(format_->begin(choices_));
    }
  }
  response_->on_disconnect([weak = weak_from_this()] {
    if (const auto answer = weak.lock()) answer->cancel();
  });
}

void Answer::submit(std::vector<AnswerRequest> requests) {
  choices_.resize(requests.size());
  for (std::size_t i = 0; i < requests.size(); ++i) {
    choices_[i].prompt = requests[i].prompt;
    choices_[i].prompt_tokens = static_cast<std::int64_t>(requests[i].request.prompt.size());
    choices_[i].parser = std::move(requests[i].parser);
    choices_[i].thinking = requests[i].thinking;
    choices_[i].calls_or_content = requests[i].calls_or_content;
    try {
      choices_[i].id = engine_.submit(std::move(requests[i].request),
                                      [self = shared_from_this(), i](const Output& output) { self->take(i, output); });
    } catch (...) {
      abandoned_ = true;
      for (std::size_t k = 0; k < i; ++k) engine_.cancel(choices_[k].id);
      throw;
    }
  }
}

void Answer::cancel() {
  std::vector<RequestId> ids;
  {
    const std::lock_guard lock(mutex_);
    for (const Choice& choice : choices_) ids.push_back(choice.id);
  }
  for (const RequestId id : ids) engine_.cancel(id);
}

AnswerDelta Answer::add(Choice& choice, const Output& output) {
  AnswerDelta delta;
  if (choice.parser) {
    for (const TokenLogprobs& token : output.logprobs) {
      choice.content_tokens.add(engine_.model().token_bytes(token.chosen.token).size(), token);
    }
    add_bytes(choice, output.text, delta);
    if (output.finish) {
      const AnswerParser::Delta rest = choice.parser->finish();
      add_text(choice, rest, delta, choice.content_tokens.finish(rest.content));
    }
  } else {
    add_text(choice, {{}, output.text, {}}, delta);
  }
  delta.logprobs = output.logprobs;
  choice.logprobs.insert(choice.logprobs.end(), output.logprobs.begin(), output.logprobs.end());
  if (choice.thinking && (choice.blocks.empty() || choice.blocks.back().kind == Block::Kind::kReasoning)) {
    choice.reasoning_tokens += static_cast<std::int64_t>(output.tokens.size());
  }
  choice.usage = output.usage;
  choice.finish = output.finish;
  choice.stop = output.stop;
  return delta;
}

void Answer::take(std::size_t index, const Output& output) {
  const std::lock_guard lock(mutex_);
  if (abandoned_) return;
  Choice& choice = choices_[index];
  const AnswerDelta delta = add(choice, output);
  if (output.finish == FinishReason::kError) error_ = output.error;
  if (output.finish == FinishReason::kCancelled) error_ = "the server is being stopped";
  if (stream_) {
    if (!delta.parts.empty() || !delta.logprobs.empty()) response_->write(format_->delta(index, choice, delta));
    if (output.finish && !has_failed(*output.finish)) response_->write(format_->finish(index, choice));
  }
  for (const Choice& other : choices_) {
    if (!other.finish) return;
  }
  end();
}

void Answer::end() {
  if (usage_ != nullptr) {
    for (const Choice& choice : choices_) usage_->add_usage(choice.usage);
  }
  if (stream_) {
    response_->write(error_.empty() ? format_->end(choices_) : format_->fail(choices_, error_));
    response_->end();
  } else if (!error_.empty()) {
    const int status = choices_.front().finish == FinishReason::kCancelled ? 503 : 500;
    response_->send(status, "application/json", format_->error(status, error_));
  } else {
    response_->send(200, "application/json", format_->body(choices_));
  }
}

}  // namespace

void add_text(Choice& choice, const AnswerParser::Delta& text, AnswerDelta& delta,
              std::span<const TokenLogprobs> logprobs) {
  const auto add = [&](std::size_t block, const std::string& text_of_part) {
    choice.blocks[block].text += text_of_part;
    if (delta.parts.empty() || delta.parts.back().block != block) delta.parts.push_back({block, {}, {}});
    delta.parts.back().text += text_of_part;
  };
  std::vector<Block>& blocks = choice.blocks;
  if (!text.reasoning.empty()) add(block_of_text(blocks, Block::Kind::kReasoning), text.reasoning);
  if (!text.content.empty()) {
    const std::size_t block = block_of_text(blocks, Block::Kind::kContent);
    add(block, text.content);
    for (std::vector<TokenLogprobs>* list : {&blocks[block].logprobs, &delta.parts.back().logprobs}) {
      list->insert(list->end(), logprobs.begin(), logprobs.end());
    }
  }
  for (const AnswerParser::CallDelta& call : text.calls) add(block_of_call(blocks, call), call.arguments);
}

std::string Choice::text(Block::Kind kind) const {
  std::string all;
  for (const Block& block : blocks) {
    if (block.kind == kind) all += block.text;
  }
  return all;
}

bool Choice::has_calls() const {
  return std::any_of(blocks.begin(), blocks.end(), [](const Block& block) { return block.kind == Block::Kind::kCall; });
}

std::string BlockFormat::delta(std::size_t, const Choice& choice, const AnswerDelta& delta) {
  std::string events;
  for (const AnswerDelta::Part& part : delta.parts) {
    const Block& block = choice.blocks[part.block];
    if (part.block >= begun_) {
      if (begun_ > 0) events += end_block(begun_ - 1, choice.blocks[begun_ - 1], false);
      begun_ = part.block + 1;
      events += begin_block(part.block, block);
    }
    if (!part.text.empty()) events += block_text(part.block, block, part);
  }
  return events;
}

std::string BlockFormat::finish(std::size_t, const Choice& choice) {
  if (begun_ == 0) return {};
  return end_block(begun_ - 1, choice.blocks[begun_ - 1], choice.finish == FinishReason::kLength);
}

void start_answer(const ApiCall& call, std::vector<AnswerRequest> requests, std::unique_ptr<AnswerFormat> format,
                  bool stream) {
  std::make_shared<Answer>(call, std::move(format), stream)->start(std::move(requests));
}

Usage total_usage(std::span<const Choice> choices) {
  Usage total;
  for (std::size_t i = 0; i < choices.size(); ++i) {
    total.generated_tokens += choices[i].usage.generated_tokens;
    if (i > 0 && choices[i].prompt == choices[i - 1].prompt) continue;
    total.prompt_tokens += choices[i].usage.prompt_tokens;
    total.cached_tokens += choices[i].usage.cached_tokens;
  }
  return total;
}

}  // namespace thalweg::server
