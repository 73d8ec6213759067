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

Grammar grammar_of_tools(GrammarCache& grammars, const Tools& tools, const Json& list, ToolCallFormat format) {
  const ToolChoice choice = tools.required ? ToolChoice::kRequired : ToolChoice::kAuto;
  const std::string text = dump(list);
  const std::string key =
      "tools " + std::to_string(static_cast<int>(choice)) + (tools.parallel ? "p " : "s ") + tools.only + " " + text;
  return grammars.find(key, [&] { return Grammar::tool_calls(text, format, choice, tools.only, tools.parallel); });
}

// A schema that a grammar cannot follow refuses a strict function. Of others the arguments are some object, as in the
// original, where they follow no schema for sure.
Grammar tool_grammar(GrammarCache& grammars, const Tools& tools, ToolCallFormat format) {
  try {
    return grammar_of_tools(grammars, tools, tools.list, format);
  } catch (const Error&) {
    if (tools.strict) throw;
  }
  Json any = tools.list;
  for (Json& tool : any) tool["function"]["parameters"] = {{"type", "object"}};
  return grammar_of_tools(grammars, tools, any, format);
}

std::optional<Grammar> grammar_of(const ApiCall& call, const ChatCall& chat) {
  GrammarCache& grammars = call.grammars;
  if (!chat.tools.empty()) return tool_grammar(grammars, chat.tools, call.engine.model().tool_call_format());
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
  if (chat.json && !chat.tools.empty()) {
    throw BadRequest("an answer is a call or JSON: with a format of the answer, the choice of tools must be 'none'",
                     "tools");
  }
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
    requests[i].thinking = prompt.thinking;
    requests[i].parser = engine.model().answer_parser(prompt.thinking, options);
  }
  return requests;
}

}  // namespace thalweg::server
