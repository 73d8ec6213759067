#include "server/openai_completions.h"

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "server/answer.h"
#include "server/bad_request.h"
#include "server/fields.h"
#include "server/openai_format.h"

namespace thalweg::server {
namespace {

class CompletionFormat : public AnswerFormat {
 public:
  CompletionFormat(const ApiCall& call, bool logprobs, std::size_t choices)
      : model_(call.engine.model()),
        id_(new_id("cmpl-")),
        created_(unix_seconds()),
        name_(model_name_of(call)),
        logprobs_(logprobs),
        offsets_(choices) {
    if (const Json* options = object_field(call.body, "stream_options")) {
      include_usage_ = bool_field(*options, "include_usage").value_or(false);
    }
  }

  std::string body(std::span<const Choice> choices) override {
    Json answer = envelope();
    for (std::size_t i = 0; i < choices.size(); ++i) {
      const Choice& choice = choices[i];
      answer["choices"].push_back(entry(i, choice.text(Block::Kind::kContent), choice.logprobs, finish_of(choice)));
    }
    answer["usage"] = openai_usage(choices);
    return dump(answer);
  }
  std::string error(int status, const std::string& message) override { return openai_error(status, message); }

  std::string begin(std::span<const Choice>) override { return {}; }
  std::string delta(std::size_t index, const Choice&, const AnswerDelta& delta) override {
    std::string text;
    for (const AnswerDelta::Part& part : delta.parts) text += part.text;
    return event(entry(index, text, delta.logprobs, nullptr));
  }
  std::string finish(std::size_t index, const Choice& choice) override {
    Json last = entry(index, "", {}, finish_of(choice));
    last["logprobs"] = nullptr;
    return event(std::move(last));
  }
  std::string end(std::span<const Choice> choices) override {
    std::string text;
    if (include_usage_) {
      Json last = envelope();
      last["usage"] = openai_usage(choices);
      text = sse_event(nullptr, last);
    }
    return text + "data: [DONE]\n\n";
  }
  std::string fail(std::span<const Choice>, const std::string& message) override {
    return "data: " + openai_error(500, message) + "\n\n";
  }

 private:
  static const char* finish_of(const Choice& choice) {
    return choice.finish == FinishReason::kLength ? "length" : "stop";
  }

  Json envelope() const {
    return {{"id", id_},
            {"object", "text_completion"},
            {"created", created_},
            {"model", name_},
            {"choices", Json::array()}};
  }

  std::string event(Json choice) const {
    Json chunk = envelope();
    chunk["choices"].push_back(std::move(choice));
    if (include_usage_) chunk["usage"] = nullptr;
    return sse_event(nullptr, chunk);
  }

  Json entry(std::size_t index, const std::string& text, const std::vector<TokenLogprobs>& logprobs,
             const char* finish) {
    return {{"index", index},
            {"text", text},
            {"logprobs", logprobs_ ? logprobs_of(index, logprobs) : Json()},
            {"finish_reason", finish != nullptr ? Json(finish) : Json()}};
  }

  Json logprobs_of(std::size_t index, const std::vector<TokenLogprobs>& logprobs) {
    Json tokens = Json::array();
    Json values = Json::array();
    Json likeliest = Json::array();
    Json offsets = Json::array();
    for (const TokenLogprobs& of_token : logprobs) {
      const std::string bytes = model_.token_bytes(of_token.chosen.token);
      Json top = Json::object();
      for (const TokenLogprobs::Entry& other : of_token.likeliest) top[model_.token_bytes(other.token)] = other.logprob;
      tokens.push_back(bytes);
      values.push_back(of_token.chosen.logprob);
      likeliest.push_back(std::move(top));
      offsets.push_back(offsets_[index]);
      offsets_[index] += bytes.size();
    }
    return {{"tokens", std::move(tokens)},
            {"token_logprobs", std::move(values)},
            {"top_logprobs", std::move(likeliest)},
            {"text_offset", std::move(offsets)}};
  }

  const Model& model_;
  const std::string id_;
  const std::int64_t created_;
  const std::string name_;
  const bool logprobs_;
  bool include_usage_ = false;
  std::vector<std::size_t> offsets_;  // of each choice's next token in its text
};

constexpr const char* kPromptForms = "'prompt' must be a text, a list of token ids, or a list of these";

std::vector<std::int32_t> tokens_of(const Engine& engine, const Json& prompt) {
  if (prompt.is_string()) return engine.model().tokenize(prompt.get_ref<const std::string&>());
  std::vector<std::int32_t> tokens;
  for (const Json& token : prompt) {
    if (!token.is_number_integer() || token.get<std::int64_t>() < 0 || token.get<std::int64_t>() > INT32_MAX) {
      throw BadRequest(kPromptForms, "prompt");
    }
    tokens.push_back(token.get<std::int32_t>());
  }
  return tokens;
}

std::vector<std::vector<std::int32_t>> prompts_of(const Engine& engine, const Json& body) {
  const Json* prompt = find_field(body, "prompt");
  if (prompt == nullptr || !(prompt->is_string() || prompt->is_array()) || prompt->empty()) {
    throw BadRequest(kPromptForms, "prompt");
  }
  const bool several = prompt->is_array() && !prompt->front().is_number();
  if (!several) return {tokens_of(engine, *prompt)};
  if (prompt->size() > 64) throw BadRequest("'prompt' must have at most 64 prompts", "prompt");
  std::vector<std::vector<std::int32_t>> prompts;
  for (const Json& one : *prompt) {
    if (!one.is_string() && !one.is_array()) throw BadRequest(kPromptForms, "prompt");
    prompts.push_back(tokens_of(engine, one));
  }
  return prompts;
}

void refuse_unsupported(const Json& body) {
  refuse_unsupported_sampling(body);
  if (bool_field(body, "echo").value_or(false)) throw BadRequest("'echo' is not supported", "echo");
  if (find_field(body, "suffix") != nullptr) throw BadRequest("'suffix' is not supported", "suffix");
  if (integer_field(body, "best_of", 1, 1).value_or(1) != 1) throw BadRequest("'best_of' must be 1", "best_of");
}

// n requests for each prompt, with a seed each.
std::vector<AnswerRequest> requests_of(const ApiCall& call) {
  const Json& body = call.body;
  const Sampling sampling = sampling_fields(body);
  const std::vector<std::string> stop = stop_field(body, "stop");
  const auto logprobs = integer_field(body, "logprobs", 0, 20);
  const std::int64_t max_tokens = integer_field(body, "max_tokens", 0, INT32_MAX).value_or(16);
  const auto count = static_cast<std::uint64_t>(integer_field(body, "n", 1, 16).value_or(1));
  const std::vector<std::vector<std::int32_t>> prompts = prompts_of(call.engine, body);
  std::vector<AnswerRequest> requests;
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    for (std::uint64_t i = 0; i < count; ++i) {
      AnswerRequest one;
      one.prompt = p;
      one.request.prompt = prompts[p];
      one.request.sampling = sampling;
      one.request.sampling.seed += i;
      one.request.max_tokens = max_tokens;
      one.request.stop = stop;
      if (logprobs) one.request.logprobs = static_cast<int>(*logprobs);
      requests.push_back(std::move(one));
    }
  }
  return requests;
}

}  // namespace

void answer_completion(const ApiCall& call) {
  refuse_unsupported(call.body);
  std::vector<AnswerRequest> requests = requests_of(call);
  const bool logprobs = requests.front().request.logprobs.has_value();
  auto format = std::make_unique<CompletionFormat>(call, logprobs, requests.size());
  start_answer(call, std::move(requests), std::move(format), bool_field(call.body, "stream").value_or(false));
}

}  // namespace thalweg::server
