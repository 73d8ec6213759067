#include "server/chat_call.h"

#include <utility>

#include "server/bad_request.h"
#include "server/grammar_cache.h"
#include "server/json.h"
#include "thalweg/grammar.h"

namespace thalweg::server {
namespace {

// A model without a chat template has not learned to end its thoughts.
ChatOptions options_of(const Engine& engine, const ChatCall& chat) {
  ChatOptions options;
  options.think = chat.think;
  if (!engine.model().info().has_chat_template && !chat.think) options.think = false;
  options.preserve_thinking = chat.preserve_thinking;
  if (!chat.tools.empty()) options.tools = dump(chat.tools.list);
  return options;
}

// JSON in place of a call only where no call is required.
bool may_answer_json(const ChatCall& chat) { return chat.json && !chat.tools.required; }

Grammar grammar_of_tools(GrammarCache& grammars, const ChatCall& chat, const Json& list, ToolCallFormat format) {
  const Tools& tools = chat.tools;
  const std::string text = dump(list);
  if (may_answer_json(chat)) {
    const std::string key = std::string("json or tools ") + (tools.parallel ? "p " : "s ") +
                            std::to_string(chat.schema.size()) + " " + chat.schema + text;
    return grammars.find(key, [&] { return Grammar::json_or_tool_calls(chat.schema, text, format, tools.parallel); });
  }
  const ToolChoice choice = tools.required ? ToolChoice::kRequired : ToolChoice::kAuto;
  const std::string key =
      "tools " + std::to_string(static_cast<int>(choice)) + (tools.parallel ? "p " : "s ") + tools.only + " " + text;
  return grammars.find(key, [&] { return Grammar::tool_calls(text, format, choice, tools.only, tools.parallel); });
}

// A schema that a grammar cannot follow refuses a strict function. Of others the arguments are some object, as in the
// original, where they follow no schema for sure.
Grammar tool_grammar(GrammarCache& grammars, const ChatCall& chat, ToolCallFormat format) {
  try {
    return grammar_of_tools(grammars, chat, chat.tools.list, format);
  } catch (const Error&) {
    if (chat.tools.strict) throw;
  }
  Json any = chat.tools.list;
  for (Json& tool : any) tool["function"]["parameters"] = {{"type", "object"}};
  return grammar_of_tools(grammars, chat, any, format);
}

std::optional<Grammar> grammar_of(const ApiCall& call, const ChatCall& chat) {
  GrammarCache& grammars = call.grammars;
  if (!chat.tools.empty()) return tool_grammar(grammars, chat, call.engine.model().tool_call_format());
  if (!chat.json) return std::nullopt;
  if (chat.schema.empty()) return grammars.find("json", [] { return Grammar::any_json(); });
  return grammars.find("schema " + chat.schema, [&] { return Grammar::json_schema(chat.schema); });
}

}  // namespace

void require_chat(const ApiCall& call) {
  if (call.engine.model().info().has_chat_template || call.force_chat) return;
  throw BadRequest(
      "this model's file has no chat template, so it was not made for conversations; /v1/completions works");
}

ChatPrompt chat_prompt_of(const Engine& engine, const ChatCall& chat) {
  return engine.model().chat_prompt(chat.messages, options_of(engine, chat));
}

std::vector<AnswerRequest> chat_requests(const ApiCall& call, const ChatCall& chat) {
  const Engine& engine = call.engine;
  const ChatOptions options = options_of(engine, chat);
  const ChatPrompt prompt = engine.model().chat_prompt(chat.messages, options);
  const std::optional<Grammar> grammar = grammar_of(call, chat);
  std::vector<AnswerRequest> requests(chat.count);
  for (std::size_t i = 0; i < chat.count; ++i) {
    Request& request = requests[i].request;
    request.prompt = prompt.tokens;
    request.boundaries = prompt.boundaries;
    request.sampling = chat.sampling;
    request.sampling.seed += i;
    request.max_tokens = chat.max_tokens;
    request.stop = chat.stop;
    request.logprobs = chat.logprobs;
    if (grammar) request.constraint = engine.constraint(*grammar, prompt.thinking);
    if (chat.thought_budget && prompt.thinking) {
      request.constraint = engine.thought_budget(*chat.thought_budget, std::move(request.constraint));
    }
    requests[i].thinking = prompt.thinking;
    requests[i].calls_or_content = may_answer_json(chat);
    requests[i].parser = engine.model().answer_parser(prompt.thinking, options);
  }
  return requests;
}

}  // namespace thalweg::server
