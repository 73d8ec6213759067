// OpenAI's chat completions: fields, whole answers and streams.

#include "server/openai_chat.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/answers.h"
#include "server/bad_request.h"
#include "server/models.h"

namespace thalweg::server {
namespace {

Json user(const std::string& text) { return {{"role", "user"}, {"content", text}}; }

Json weather_tool() {
  return Json::parse(R"({"type": "function", "function": {"name": "weather", "description": "of a city",
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
                   "required": ["city"], "additionalProperties": false}}})");
}

// The message that a stream's deltas make.
Json joined(const std::vector<Event>& events) {
  Json message = {{"role", ""}, {"content", ""}};
  for (const Event& event : events) {
    if (event.data == "[DONE]" || event.data["choices"].empty()) continue;
    const Json& delta = event.data["choices"][0]["delta"];
    for (const char* name : {"role", "content", "reasoning_content"}) {
      if (delta.contains(name)) message[name] = message.value(name, "") + delta[name].get<std::string>();
    }
    if (!delta.contains("tool_calls")) continue;
    for (const Json& part : delta["tool_calls"]) {
      Json& call = message["tool_calls"][part["index"].get<std::size_t>()];
      if (part.contains("id")) call = {{"id", part["id"]}, {"type", part["type"]}, {"function", {{"arguments", ""}}}};
      Json& function = call["function"];
      if (part["function"].contains("name")) function["name"] = part["function"]["name"];
      function["arguments"] =
          function["arguments"].get<std::string>() + part["function"]["arguments"].get<std::string>();
    }
  }
  return message;
}

TEST(ChatFormat, StreamsWhatTheWholeAnswerSays) {
  Server server;
  const Caller caller(server, {{"stream_options", {{"include_usage", true}}}});
  for (const std::size_t step : {1U, 7U, 1000U}) {
    const auto format = chat_format(caller.call(), false, 1);
    const Played played = play(*format, kFullAnswer, true, step);
    const std::vector<Event> events = events_of(played.events);
    const Json message = joined(events);
    EXPECT_EQ(message["role"], "assistant");
    EXPECT_EQ(message["reasoning_content"], "First the weather.");
    EXPECT_EQ(message["content"], "I will look.");
    ASSERT_EQ(message["tool_calls"].size(), 2U);
    EXPECT_EQ(message["tool_calls"][0]["function"]["name"], "weather");
    EXPECT_EQ(Json::parse(message["tool_calls"][0]["function"]["arguments"].get<std::string>()),
              Json({{"city", "Paris"}}));
    EXPECT_NE(message["tool_calls"][0]["id"], message["tool_calls"][1]["id"]);
    EXPECT_EQ(message["tool_calls"][1]["function"], Json::parse(R"({"arguments": "{}", "name": "time"})"));
    EXPECT_EQ(events.back().data, "[DONE]");
    EXPECT_EQ(events[events.size() - 3].data["choices"][0]["finish_reason"], "tool_calls");
    EXPECT_EQ(events[events.size() - 2].data["usage"]["prompt_tokens_details"]["cached_tokens"], 20);

    const Json whole = Json::parse(format->body({&played.choice, 1}));
    const Json& choice = whole["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    for (const char* name : {"content", "reasoning_content"}) EXPECT_EQ(choice["message"][name], message[name]);
    for (std::size_t i = 0; i < 2; ++i) {
      const Json& call = choice["message"]["tool_calls"][i];
      for (const char* name : {"name", "arguments"}) {
        EXPECT_EQ(call["function"][name], message["tool_calls"][i]["function"][name]);
      }
    }
  }
}

TEST(ChatFormat, SaysHowAnAnswerEnded) {
  Server server;
  const Caller caller(server, Json::object());
  const auto reason = [&](std::string_view text, FinishReason finish) {
    const auto format = chat_format(caller.call(), false, 1);
    const Played played = play(*format, text, false, 3, finish);
    const Json choice = Json::parse(format->body({&played.choice, 1}))["choices"][0];
    const std::vector<Event> events = events_of(played.events);
    EXPECT_EQ(events[events.size() - 2].data["choices"][0]["finish_reason"], choice["finish_reason"]);
    return choice["finish_reason"].get<std::string>();
  };
  EXPECT_EQ(reason("text", FinishReason::kEndToken), "stop");
  EXPECT_EQ(reason("text", FinishReason::kStop), "stop");
  EXPECT_EQ(reason("text", FinishReason::kLength), "length");
  const std::string call = "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}\n</tool_call>";
  EXPECT_EQ(reason(call, FinishReason::kEndToken), "tool_calls");
  const auto format = chat_format(caller.call(), false, 1);
  const Played played = play(*format, call, false, 5);
  EXPECT_TRUE(Json::parse(format->body({&played.choice, 1}))["choices"][0]["message"]["content"].is_null());
}

TEST(ReadChat, KnowsTheFields) {
  const ChatCall chat = read_chat_completion(Json::parse(R"({
    "messages": [
      {"role": "developer", "content": "Be short."},
      {"role": "user", "content": [{"type": "text", "text": "Weather"}, {"type": "text", "text": "?"}]},
      {"role": "assistant", "content": null, "reasoning_content": "hm", "tool_calls": [
        {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{\"city\": \"Rome\"}"}}]},
      {"role": "tool", "tool_call_id": "a", "content": "sun"}],
    "tools": [{"type": "function", "function": {"name": "weather", "strict": true}}],
    "tool_choice": "required", "parallel_tool_calls": false, "max_completion_tokens": 7, "max_tokens": 9,
    "stop": "X", "n": 3, "logprobs": true, "top_logprobs": 2, "temperature": 0.5, "seed": 4,
    "chat_template_kwargs": {"enable_thinking": false}, "reasoning_effort": "high", "user": "x"})"));
  ASSERT_EQ(chat.messages.size(), 4U);
  EXPECT_EQ(chat.messages[0].role, "system");
  EXPECT_EQ(chat.messages[1].content, "Weather?");
  EXPECT_EQ(chat.messages[2].reasoning, "hm");
  EXPECT_EQ(chat.messages[2].tool_calls[0].arguments, R"({"city": "Rome"})");
  EXPECT_EQ(chat.messages[3].content, "sun");
  EXPECT_TRUE(chat.tools.strict && chat.tools.required && !chat.tools.parallel);
  EXPECT_EQ(chat.max_tokens, 7);
  EXPECT_EQ(chat.stop, std::vector<std::string>{"X"});
  EXPECT_EQ(chat.count, 3U);
  EXPECT_EQ(chat.logprobs, 2);
  EXPECT_EQ(chat.sampling.seed, 4U);
  EXPECT_EQ(chat.think, false);
  EXPECT_FALSE(chat.json);

  const Json messages = Json::array({user("x")});
  const auto format = [&](const char* text) {
    return read_chat_completion({{"messages", messages}, {"response_format", Json::parse(text)}});
  };
  EXPECT_FALSE(format(R"({"type": "text"})").json);
  EXPECT_TRUE(format(R"({"type": "json_object"})").json);
  EXPECT_EQ(format(R"({"type": "json_schema", "json_schema": {"name": "n", "schema": {"b": 1, "a": 2}}})").schema,
            R"({"b":1,"a":2})");
  EXPECT_EQ(read_chat_completion({{"messages", messages}, {"reasoning_effort", "none"}}).think, false);
  EXPECT_EQ(read_chat_completion({{"messages", messages}}).think, std::nullopt);
}

TEST(ReadChat, RefusalsNameTheField) {
  const auto expect = [](const char* name, const char* fields) {
    Json body = Json::parse(fields);
    if (!body.contains("messages")) body["messages"] = Json::array({user("x")});
    try {
      read_chat_completion(body);
      ADD_FAILURE() << fields;
    } catch (const BadRequest& error) {
      EXPECT_EQ(error.parameter(), name) << fields;
      EXPECT_EQ(error.status(), 400);
    }
  };
  expect("messages", R"({"messages": []})");
  expect("messages", R"({"messages": "x"})");
  expect("messages", R"({"messages": ["x"]})");
  expect("messages", R"({"messages": [{"content": "x"}]})");
  expect("messages", R"({"messages": [{"role": "function", "content": "x"}]})");
  expect("messages", R"({"messages": [{"role": "user", "content": 3}]})");
  expect("messages", R"({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]})");
  expect("messages", R"({"messages": [{"role": "tool", "tool_call_id": "a", "content": "x"}]})");
  expect("messages", R"({"messages": [{"role": "assistant", "tool_calls": [{"id": "a"}]}]})");
  expect("tools", R"({"tools": [{"type": "function"}]})");
  expect("tools", R"({"tools": [{"type": "custom", "custom": {"name": "f"}}]})");
  expect("tools", R"({"tools": "all"})");
  expect("tool_choice", R"({"tool_choice": "required"})");
  expect("functions", R"({"functions": [{"name": "f"}]})");
  expect("response_format", R"({"response_format": {"type": "xml"}})");
  expect("modalities", R"({"modalities": ["audio"]})");
  expect("presence_penalty", R"({"presence_penalty": 1})");
  expect("logit_bias", R"({"logit_bias": {"1": 5}})");
  expect("top_logprobs", R"({"logprobs": true, "top_logprobs": 21})");
  expect("n", R"({"n": 17})");
  expect("reasoning_effort", R"({"reasoning_effort": "huge"})");
  expect("max_completion_tokens", R"({"max_completion_tokens": 0})");
}

void expect_required_call(Server& server) {
  Json body = {{"messages", {user("Weather in Rome?")}},
               {"tools", {weather_tool()}},
               {"tool_choice", "required"},
               {"parallel_tool_calls", false},
               {"reasoning_effort", "none"},
               {"temperature", 0},
               {"max_tokens", 200}};
  const Json choice = server.post("/v1/chat/completions", body)["choices"][0];
  EXPECT_EQ(choice["finish_reason"], "tool_calls");
  ASSERT_EQ(choice["message"]["tool_calls"].size(), 1U) << choice;
  const Json call = choice["message"]["tool_calls"][0];
  EXPECT_EQ(call["type"], "function");
  EXPECT_EQ(call["function"]["name"], "weather");
  const std::string city = Json::parse(call["function"]["arguments"].get<std::string>()).at("city");
  EXPECT_TRUE(city == "Paris" || city == "Rome") << city;

  const Json streamed = joined(events_of(server.raw_stream("/v1/chat/completions", body)));
  EXPECT_EQ(streamed["tool_calls"][0]["function"]["arguments"], call["function"]["arguments"]);
  body["tool_choice"] = {{"type", "function"}, {"function", {{"name", "weather"}}}};
  EXPECT_EQ(server.post("/v1/chat/completions", body)["choices"][0]["message"]["tool_calls"].size(), 1U);

  // Its result is a message like others.
  body["messages"].push_back(choice["message"]);
  body["messages"].push_back({{"role", "tool"}, {"tool_call_id", call["id"]}, {"content", "sun"}});
  body["tool_choice"] = "none";
  EXPECT_FALSE(server.post("/v1/chat/completions", body)["choices"][0]["message"].contains("tool_calls"));
}

TEST(Models, SayWhetherAnswersMayThink) {
  const auto modes = [](const Model& model) {
    const std::string name = "story";
    return Json::parse(openai_models({name, 0, model}, false)).at("enable_thinking");
  };
  EXPECT_EQ(modes(shipped_model()), Json::parse("[false]"));
  EXPECT_EQ(modes(random_model()), Json::parse("[false, true]"));
}

TEST(Chat, ARequiredCallIsMade) {
  Server server;
  ASSERT_EQ(server.engine().model().tool_call_format(), ToolCallFormat::kJson);
  expect_required_call(server);
}

TEST(Chat, ARequiredCallIsMadeAsXml) {
  Server server(model_without_template(), Server::forced_options());
  ASSERT_EQ(server.engine().model().tool_call_format(), ToolCallFormat::kXml);
  expect_required_call(server);
}

// With the default choice the grammar leaves text free, and a call would hold to it.
TEST(Chat, ToolsMayBeOffered) {
  Server server;
  const Json body = {{"messages", {user("Where is the ball?")}}, {"temperature", 0}, {"max_tokens", 8}};
  Json offered = body;
  offered["tools"] = {weather_tool()};
  const Json message = server.post("/v1/chat/completions", offered)["choices"][0]["message"];
  EXPECT_FALSE(message.contains("tool_calls")) << message;
  EXPECT_FALSE(message["content"].get<std::string>().empty());

  // A schema that no grammar follows: its arguments are some object, unless the function is strict.
  Json odd = weather_tool();
  odd["function"]["parameters"]["patternProperties"] = {{"x", true}};
  offered["tools"] = {odd};
  server.post("/v1/chat/completions", offered);
  odd["function"]["strict"] = true;
  offered["tools"] = {odd};
  const Json refused = server.post("/v1/chat/completions", offered, 400)["error"];
  EXPECT_NE(refused["message"].get<std::string>().find("patternProperties"), std::string::npos) << refused;
}

TEST(Chat, JsonFollowsItsSchema) {
  Server server;
  const Json schema = Json::parse(R"({"type": "object", "properties": {"place": {"type": "string", "maxLength": 8},
    "sure": {"type": "boolean"}}, "required": ["place", "sure"], "additionalProperties": false})");
  Json body = {{"messages", {user(kQuestion)}},
               {"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", schema}}}}},
               {"temperature", 0},
               {"reasoning_effort", "none"},
               {"max_tokens", 100}};
  const Json answer = server.post("/v1/chat/completions", body)["choices"][0];
  EXPECT_EQ(answer["finish_reason"], "stop");
  const Json content = Json::parse(answer["message"]["content"].get<std::string>());
  EXPECT_TRUE(content.at("place").is_string() && content.at("sure").is_boolean()) << content;
  EXPECT_EQ(joined(events_of(server.raw_stream("/v1/chat/completions", body)))["content"],
            answer["message"]["content"]);

  body["response_format"]["json_schema"]["schema"] = {{"type", "object"}, {"patternProperties", {{"a", true}}}};
  const Json refused = server.post("/v1/chat/completions", body, 400)["error"];
  EXPECT_NE(refused["message"].get<std::string>().find("patternProperties"), std::string::npos) << refused;
}

// Of the content's tokens: thoughts have none.
TEST(Chat, LogprobsAreOfTheContent) {
  Server server(random_model(), Server::forced_options());
  Json body = {
      {"messages", {user("Hello")}}, {"temperature", 0}, {"max_tokens", 12}, {"logprobs", true}, {"top_logprobs", 1}};
  const auto check = [&](bool think) {
    body["chat_template_kwargs"] = {{"enable_thinking", think}};
    const Json answer = server.post("/v1/chat/completions", body);
    const Json& choice = answer["choices"][0];
    const Json& logprobs = choice["logprobs"]["content"];
    EXPECT_EQ(choice["message"]["content"].get<std::string>().empty(), think) << choice;
    Json streamed = Json::array();
    for (const Json& event : server.stream("/v1/chat/completions", body)) {
      const Json& part = event["choices"][0]["logprobs"];
      if (part.is_null()) continue;
      for (const Json& token : part["content"]) streamed.push_back(token);
    }
    EXPECT_EQ(streamed, logprobs);
    EXPECT_EQ(logprobs.size(), think ? 0 : answer["usage"]["completion_tokens"].get<std::size_t>());
  };
  check(true);
  check(false);
}

// What comes is one or the other, whatever the model would write.
TEST(Chat, AnswersAreJsonOrCalls) {
  Server server;
  const Json schema = Json::parse(R"({"type": "object", "properties": {"sure": {"type": "boolean"}},
    "required": ["sure"], "additionalProperties": false})");
  Json body = {{"messages", {user(kQuestion)}},
               {"tools", {weather_tool()}},
               {"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", schema}}}}},
               {"parallel_tool_calls", false},
               {"temperature", 2},
               {"max_tokens", 200}};
  int calls = 0;
  int contents = 0;
  for (int seed = 0; seed < 200 && (calls < 2 || contents < 2); ++seed) {
    body["seed"] = seed;
    const Json choice = server.post("/v1/chat/completions", body)["choices"][0];
    const Json& message = choice["message"];
    if (message.contains("tool_calls")) {
      ++calls;
      EXPECT_TRUE(message["content"].is_null()) << message;
      EXPECT_EQ(choice["finish_reason"], "tool_calls");
      for (const Json& call : message["tool_calls"]) {
        const Json arguments = Json::parse(call["function"]["arguments"].get<std::string>());
        EXPECT_TRUE(arguments == Json({{"city", "Paris"}}) || arguments == Json({{"city", "Rome"}})) << arguments;
      }
    } else {
      ++contents;
      EXPECT_TRUE(Json::parse(message["content"].get<std::string>()).at("sure").is_boolean()) << message;
      EXPECT_EQ(choice["finish_reason"], "stop");
    }
  }
  EXPECT_GE(contents, 2);
  EXPECT_GE(calls, 2);

  body["temperature"] = 0;
  body["tool_choice"] = "required";
  EXPECT_TRUE(server.post("/v1/chat/completions", body)["choices"][0]["message"].contains("tool_calls"));
  body["tool_choice"] = "none";
  EXPECT_FALSE(server.post("/v1/chat/completions", body)["choices"][0]["message"].contains("tool_calls"));
}

// A call that a string of the answer spells is not made.
TEST(Chat, JsonMaySpellACall) {
  Server server(model_without_template(), Server::forced_options());  // calls as XML need no quotes
  const Json schema = Json::parse(R"({"type": "object", "properties": {"a": {"type": "string",
    "enum": ["<tool_call><function=weather></function></tool_call>"]}}, "required": ["a"],
    "additionalProperties": false})");
  Json tool = weather_tool();
  Json body = {{"messages", {user(kQuestion)}},
               {"tools", {tool}},
               {"response_format", {{"type", "json_schema"}, {"json_schema", {{"name", "n"}, {"schema", schema}}}}},
               {"parallel_tool_calls", false},
               {"temperature", 2},
               {"max_tokens", 200}};
  int contents = 0;
  for (int seed = 0; seed < 100 && contents < 2; ++seed) {
    body["seed"] = seed;
    const Json message = server.post("/v1/chat/completions", body)["choices"][0]["message"];
    if (message["content"].is_null()) continue;
    ++contents;
    EXPECT_FALSE(message.contains("tool_calls")) << message;
    EXPECT_EQ(Json::parse(message["content"].get<std::string>())["a"], schema["properties"]["a"]["enum"][0]);
  }
  EXPECT_EQ(contents, 2);
}

}  // namespace
}  // namespace thalweg::server
