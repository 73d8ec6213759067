// Anthropic's messages: blocks in, blocks and events out.

#include "server/anthropic.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/answers.h"
#include "server/bad_request.h"

namespace thalweg::server {
namespace {

using Names = std::vector<std::string>;

Json user(const std::string& text) { return {{"role", "user"}, {"content", text}}; }

// The message that a stream's events make.
Json joined(const std::vector<Event>& events) {
  Json message;
  std::string input;
  for (const Event& event : events) {
    const Json& data = event.data;
    if (event.name == "message_start") message = data["message"];
    if (event.name == "content_block_start") message["content"].push_back(data["content_block"]);
    if (event.name == "content_block_start") input.clear();
    if (event.name == "content_block_delta") {
      EXPECT_EQ(data["index"], message["content"].size() - 1);
      Json& block = message["content"].back();
      const Json& delta = data["delta"];
      if (delta["type"] == "text_delta")
        block["text"] = block["text"].get<std::string>() + delta["text"].get<std::string>();
      if (delta["type"] == "thinking_delta") {
        block["thinking"] = block["thinking"].get<std::string>() + delta["thinking"].get<std::string>();
      }
      if (delta["type"] == "input_json_delta") input += delta["partial_json"].get<std::string>();
    }
    if (event.name == "content_block_stop" && message["content"].back()["type"] == "tool_use") {
      message["content"].back()["input"] = Json::parse(input);
    }
    if (event.name == "message_delta") {
      message.update(data["delta"]);
      message["usage"].update(data["usage"]);
    }
  }
  return message;
}

// Without the ids of blocks, which are new each time.
Json without_ids(Json message) {
  for (Json& block : message["content"]) block.erase("id");
  return message;
}

TEST(MessageFormat, StreamsWhatTheWholeMessageSays) {
  Server server;
  const Caller caller(server, Json::object());
  for (const std::size_t step : {1U, 9U, 1000U}) {
    const auto format = message_format(caller.call());
    const Played played = play(*format, kFullAnswer, true, step);
    const std::vector<Event> events = events_of(played.events);
    const Json whole = Json::parse(format->body({&played.choice, 1}));
    EXPECT_EQ(without_ids(joined(events)), without_ids(whole));

    Names order;
    for (const std::string& name : names_of(events)) {
      if (order.empty() || order.back() != name) order.push_back(name);
    }
    Names expected = {"message_start", "ping"};
    for (int i = 0; i < 4; ++i) {
      for (const char* name : {"content_block_start", "content_block_delta", "content_block_stop"}) {
        expected.emplace_back(name);
      }
    }
    expected.emplace_back("message_delta");
    expected.emplace_back("message_stop");
    EXPECT_EQ(order, expected) << "step " << step;
    for (const Event& event : events) EXPECT_EQ(event.data["type"], event.name);
  }
}

TEST(MessageFormat, AWholeMessage) {
  Server server;
  const Caller caller(server, {{"model", "any"}});
  const auto format = message_format(caller.call());
  const Played played = play(*format, kFullAnswer, true, 5);
  const Json message = Json::parse(format->body({&played.choice, 1}));
  EXPECT_EQ(message["type"], "message");
  EXPECT_EQ(message["role"], "assistant");
  EXPECT_EQ(message["model"], "any");
  EXPECT_EQ(message["stop_reason"], "tool_use");
  EXPECT_TRUE(message["stop_sequence"].is_null());
  ASSERT_EQ(message["content"].size(), 4U);
  EXPECT_EQ(message["content"][0]["thinking"], "First the weather.");
  EXPECT_EQ(message["content"][1], Json::parse(R"({"type": "text", "text": "I will look."})"));
  EXPECT_EQ(message["content"][2]["input"], Json::parse(R"({"city": "Paris"})"));
  EXPECT_TRUE(message["content"][3]["id"].get<std::string>().starts_with("toolu_"));
  EXPECT_EQ(message["usage"]["input_tokens"], 10);
  EXPECT_EQ(message["usage"]["cache_read_input_tokens"], 20);
  EXPECT_EQ(message["usage"]["output_tokens"], 12);
}

TEST(MessageFormat, SaysHowItStopped) {
  Server server;
  const Caller caller(server, Json::object());
  const auto stop = [&](FinishReason finish) {
    const auto format = message_format(caller.call());
    const Played played = play(*format, "text", false, 3, finish);
    const Json message = Json::parse(format->body({&played.choice, 1}));
    EXPECT_EQ(joined(events_of(played.events))["stop_reason"], message["stop_reason"]);
    return message["stop_reason"].get<std::string>() + " " + message["stop_sequence"].dump();
  };
  EXPECT_EQ(stop(FinishReason::kEndToken), "end_turn null");
  EXPECT_EQ(stop(FinishReason::kLength), "max_tokens null");
  EXPECT_EQ(stop(FinishReason::kStop), "stop_sequence \"END\"");
  const std::vector<Event> failed = events_of(message_format(caller.call())->fail({}, "no luck"));
  EXPECT_EQ(failed.back().name, "error");
  EXPECT_EQ(failed.back().data["error"]["type"], "api_error");
}

TEST(ReadMessage, KnowsTheFields) {
  const ChatCall chat = read_message(Json::parse(R"({
    "system": [{"type": "text", "text": "Be short."}, {"type": "text", "text": "And kind.", "cache_control": {}}],
    "messages": [
      {"role": "user", "content": "Weather?"},
      {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": ""}, {"type": "redacted_thinking", "data": "x"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "a", "name": "f", "input": {"z": 1, "a": 2}},
        {"type": "tool_use", "id": "b", "name": "f", "input": {}}]},
      {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "second"}]},
        {"type": "tool_result", "tool_use_id": "a", "content": "first"},
        {"type": "text", "text": "Go on."}]}],
    "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": true},
    "thinking": {"type": "enabled", "budget_tokens": 2000},
    "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    "stop_sequences": ["X", "Y"], "temperature": 0.5, "top_k": 5, "metadata": {"user_id": "u"}})"));
  ASSERT_EQ(chat.messages.size(), 6U);
  EXPECT_EQ(chat.messages[0].content, "Be short.\n\nAnd kind.");
  EXPECT_EQ(chat.messages[2].reasoning, "hm");
  EXPECT_EQ(chat.messages[2].content, "I look.");
  EXPECT_EQ(chat.messages[2].tool_calls[0].arguments, R"({"z":1,"a":2})");
  EXPECT_EQ(chat.messages[3].content, "first");
  EXPECT_EQ(chat.messages[4].content, "second");
  EXPECT_EQ(chat.messages[5].content, "Go on.");
  EXPECT_EQ(chat.tools.list[0]["function"]["parameters"], Json::parse(R"({"type": "object"})"));
  EXPECT_TRUE(chat.tools.required && !chat.tools.parallel);
  EXPECT_EQ(chat.think, true);
  EXPECT_EQ(chat.thought_budget, 2000);
  EXPECT_EQ(chat.schema, R"({"type":"object"})");
  EXPECT_EQ(chat.stop.size(), 2U);
  EXPECT_EQ(chat.sampling.top_k, 5);

  const auto budget = [](const char* thinking) {
    return read_message({{"messages", {user("x")}}, {"thinking", Json::parse(thinking)}}).thought_budget;
  };
  EXPECT_EQ(budget(R"({"type": "enabled"})"), std::nullopt);
  EXPECT_EQ(budget(R"({"type": "disabled", "budget_tokens": 5})"), std::nullopt);

  const auto choice = [](const char* text) {
    return read_message({{"messages", {user("x")}},
                         {"tools", {{{"name", "f"}, {"input_schema", Json::object()}}}},
                         {"tool_choice", Json::parse(text)}})
        .tools;
  };
  EXPECT_FALSE(choice(R"({"type": "auto"})").required);
  EXPECT_TRUE(choice(R"({"type": "none"})").empty());
  EXPECT_EQ(choice(R"({"type": "tool", "name": "f"})").only, "f");
}

TEST(ReadMessage, RefusalsNameTheField) {
  const auto expect = [](const char* name, const char* fields) {
    Json body = Json::parse(fields);
    if (!body.contains("messages")) body["messages"] = Json::array({user("x")});
    try {
      read_message(body);
      ADD_FAILURE() << fields;
    } catch (const BadRequest& error) {
      EXPECT_EQ(error.parameter(), name) << fields;
    }
  };
  expect("messages", R"({"messages": []})");
  expect("messages", R"({"messages": [{"role": "user"}]})");
  expect("messages", R"({"messages": [{"role": "tool", "content": "x"}]})");
  expect("messages", R"({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]})");
  expect("messages", R"({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]})");
  expect("messages", R"({"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]})");
  expect("system", R"({"system": 3})");
  expect("tools", R"({"tools": [{"name": "f"}]})");
  expect("tools", R"({"tools": [{"type": "web_search_20250305", "name": "web_search"}]})");
  expect("tool_choice", R"({"tool_choice": {"type": "any"}})");
  expect("tool_choice", R"({"tool_choice": {"type": "some"}})");
  expect("thinking", R"({"thinking": {"type": "sometimes"}})");
  expect("thinking", R"({"thinking": {"type": "enabled", "budget_tokens": 0}})");
  expect("output_config.format", R"({"output_config": {"format": {"type": "xml"}}})");
  expect("stop_sequences", R"({"stop_sequences": [""]})");
  expect("mcp_servers", R"({"mcp_servers": [{"type": "url"}]})");
}

TEST(Messages, StreamAndWholeAnswerAreEqual) {
  Server server;
  const Json body = {
      {"messages", {user(kQuestion)}}, {"temperature", 0}, {"max_tokens", 12}, {"thinking", {{"type", "disabled"}}}};
  const Json whole = server.post("/v1/messages", body);
  Json streamed = joined(events_of(server.raw_stream("/v1/messages", body)));
  EXPECT_EQ(streamed["content"], whole["content"]);
  EXPECT_EQ(streamed["stop_reason"], whole["stop_reason"]);
  EXPECT_EQ(streamed["usage"]["output_tokens"], whole["usage"]["output_tokens"]);

  ASSERT_EQ(whole["content"].size(), 1U) << whole;
  const std::string text = whole["content"][0]["text"];
  Json stopped = body;
  stopped["stop_sequences"] = {"not there", text.substr(text.size() / 2, 3)};
  const Json message = server.post("/v1/messages", stopped);
  EXPECT_EQ(message["stop_reason"], "stop_sequence");
  EXPECT_EQ(message["stop_sequence"], stopped["stop_sequences"][1]);
  EXPECT_EQ(server.post("/v1/messages/count_tokens", body)["input_tokens"],
            whole["usage"]["input_tokens"].get<int>() + whole["usage"]["cache_read_input_tokens"].get<int>());
}

TEST(Messages, ThoughtsEndWithTheirBudget) {
  Server server(random_model(), Server::forced_options());
  Json body = {{"messages", {user("Hello")}},
               {"temperature", 0},
               {"max_tokens", 25},
               {"thinking", {{"type", "enabled"}, {"budget_tokens", 1000}}}};
  const Json endless = server.post("/v1/messages", body);
  ASSERT_EQ(endless["content"].size(), 1U) << endless;
  EXPECT_EQ(endless["content"][0]["type"], "thinking");

  body["thinking"]["budget_tokens"] = 6;
  const Json message = server.post("/v1/messages", body);
  ASSERT_EQ(message["content"].size(), 2U) << message;
  EXPECT_EQ(message["content"][0]["type"], "thinking");
  EXPECT_EQ(message["content"][1]["type"], "text");
  const std::string thoughts = message["content"][0]["thinking"];
  EXPECT_LT(thoughts.size(), endless["content"][0]["thinking"].get<std::string>().size());
  EXPECT_TRUE(endless["content"][0]["thinking"].get<std::string>().starts_with(thoughts));
}

TEST(Messages, ErrorsAndModelsHaveTheirOwnForm) {
  ApiOptions options = Server::named_options();
  Server server(options);
  const Json missing = server.post("/v1/messages", {{"messages", {user("x")}}}, 400);
  EXPECT_EQ(missing["type"], "error");
  EXPECT_EQ(missing["error"]["type"], "invalid_request_error");
  EXPECT_NE(missing["error"]["message"].get<std::string>().find("max_tokens"), std::string::npos);
  const auto get = [&](const std::string& path) {
    const std::string response = server.ask("GET", path, "", "anthropic-version: 2023-06-01\r\n");
    return Json::parse(response.substr(response.find("\r\n\r\n") + 4));
  };
  const Json models = get("/v1/models");
  EXPECT_EQ(models["data"][0]["type"], "model");
  EXPECT_EQ(models["last_id"], "story");
  EXPECT_EQ(models["has_more"], false);
  EXPECT_TRUE(models["data"][0]["created_at"].get<std::string>().ends_with("Z"));
  EXPECT_EQ(get("/v1/models/story"), models["data"][0]);
  EXPECT_EQ(get("/v1/models/other")["error"]["type"], "not_found_error");

  options.keys = {"secret"};
  Server locked(options);
  const std::string refused = locked.ask("POST", "/v1/messages", "{}");
  EXPECT_EQ(status_of(refused), 401);
  EXPECT_NE(refused.find("authentication_error"), std::string::npos);
  EXPECT_EQ(status_of(locked.ask("POST", "/v1/messages", "{}", "x-api-key: secret\r\n")), 400);
}

}  // namespace
}  // namespace thalweg::server
