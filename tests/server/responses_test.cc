// OpenAI's responses: items in, items and events out.

#include "server/responses.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/answers.h"
#include "server/bad_request.h"

namespace thalweg::server {
namespace {

using Names = std::vector<std::string>;

// Events without the deltas after a first one.
Names order_of(const std::vector<Event>& events) {
  Names order;
  for (const std::string& name : names_of(events)) {
    if (order.empty() || order.back() != name) order.push_back(name);
  }
  return order;
}

TEST(ResponseFormat, StreamsInTheOriginalsOrder) {
  Server server;
  const Caller caller(server, Json::object());
  for (const std::size_t step : {1U, 9U, 1000U}) {
    const auto format = response_format(caller.call());
    const Played played = play(*format, kFullAnswer, true, step);
    const std::vector<Event> events = events_of(played.events);
    Names call = {"response.output_item.added", "response.function_call_arguments.delta",
                  "response.function_call_arguments.done", "response.output_item.done"};
    Names expected = {"response.created",
                      "response.in_progress",
                      "response.output_item.added",
                      "response.content_part.added",
                      "response.reasoning_text.delta",
                      "response.reasoning_text.done",
                      "response.content_part.done",
                      "response.output_item.done",
                      "response.output_item.added",
                      "response.content_part.added",
                      "response.output_text.delta",
                      "response.output_text.done",
                      "response.content_part.done",
                      "response.output_item.done"};
    for (int i = 0; i < 2; ++i) expected.insert(expected.end(), call.begin(), call.end());
    expected.emplace_back("response.completed");
    EXPECT_EQ(order_of(events), expected) << "step " << step;

    Json items = Json::array();
    std::vector<std::string> texts(4);
    for (std::size_t i = 0; i < events.size(); ++i) {
      const Json& data = events[i].data;
      EXPECT_EQ(data["type"], events[i].name);
      EXPECT_EQ(data["sequence_number"], i);
      if (data.contains("delta")) texts[data["output_index"].get<std::size_t>()] += data["delta"].get<std::string>();
      if (events[i].name == "response.output_item.added") {
        EXPECT_EQ(data["item"]["status"], "in_progress");
      }
      if (events[i].name == "response.output_item.done") items.push_back(data["item"]);
    }
    const Json response = events.back().data["response"];
    EXPECT_EQ(response["output"], items);
    EXPECT_EQ(response["id"], events.front().data["response"]["id"]);
    EXPECT_EQ(texts[0], items[0]["content"][0]["text"]);
    EXPECT_EQ(texts[1], items[1]["content"][0]["text"]);
    EXPECT_EQ(texts[2], items[2]["arguments"]);
    EXPECT_EQ(texts[3], items[3]["arguments"]);
    EXPECT_EQ(Json::parse(format->body({&played.choice, 1})), response);
  }
}

TEST(ResponseFormat, AWholeResponse) {
  Server server;
  const Caller caller(server, Json::parse(R"({"model": "any", "instructions": "Be short.", "temperature": 0.5})"));
  const auto format = response_format(caller.call());
  const Played played = play(*format, kFullAnswer, true, 4);
  const Json response = Json::parse(format->body({&played.choice, 1}));
  EXPECT_EQ(response["object"], "response");
  EXPECT_EQ(response["status"], "completed");
  EXPECT_EQ(response["model"], "any");
  EXPECT_EQ(response["instructions"], "Be short.");
  EXPECT_EQ(response["temperature"], 0.5);
  EXPECT_EQ(response["tool_choice"], "auto");
  EXPECT_TRUE(response["error"].is_null() && response["incomplete_details"].is_null());
  ASSERT_EQ(response["output"].size(), 4U);
  EXPECT_EQ(response["output"][0]["type"], "reasoning");
  EXPECT_EQ(response["output"][0]["content"][0]["text"], "First the weather.");
  EXPECT_EQ(response["output"][1]["type"], "message");
  EXPECT_EQ(response["output"][1]["content"][0]["text"], "I will look.");
  EXPECT_EQ(response["output"][2]["type"], "function_call");
  EXPECT_EQ(response["output"][2]["name"], "weather");
  EXPECT_TRUE(response["output"][2]["call_id"].get<std::string>().starts_with("call_"));
  EXPECT_EQ(response["usage"]["input_tokens"], 30);
  EXPECT_EQ(response["usage"]["input_tokens_details"]["cached_tokens"], 20);
  EXPECT_EQ(response["usage"]["output_tokens"], 12);
  EXPECT_EQ(response["usage"]["total_tokens"], 42);
}

TEST(ResponseFormat, SaysThatItIsIncompleteOrFailed) {
  Server server;
  const Caller caller(server, Json::object());
  const auto format = response_format(caller.call());
  const Played played = play(*format, "cut", false, 4, FinishReason::kLength);
  const std::vector<Event> events = events_of(played.events);
  EXPECT_EQ(events.back().name, "response.incomplete");
  const Json response = events.back().data["response"];
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"]["reason"], "max_output_tokens");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  EXPECT_EQ(events[events.size() - 2].data["item"], response["output"][0]);

  const std::vector<Event> failed = events_of(response_format(caller.call())->fail({&played.choice, 1}, "no luck"));
  EXPECT_EQ(failed.back().name, "response.failed");
  EXPECT_EQ(failed.back().data["response"]["error"]["message"], "no luck");
}

TEST(ReadResponse, KnowsTheFields) {
  const ChatCall chat = read_response(Json::parse(R"({
    "instructions": "Be short.",
    "input": [
      {"role": "developer", "content": "And kind."},
      {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Weather?"}]},
      {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
      {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "I look."}]},
      {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
      {"type": "function_call", "call_id": "b", "name": "g", "arguments": "{}"},
      {"type": "function_call_output", "call_id": "b", "output": "of g"},
      {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "of f"}]}],
    "tools": [{"type": "function", "name": "f", "description": "d", "parameters": {"type": "object"}, "strict": true}],
    "tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": false,
    "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    "reasoning": {"effort": "none"}, "max_output_tokens": 9, "top_p": 0.5, "store": true, "include": []})"));
  ASSERT_EQ(chat.messages.size(), 5U);
  EXPECT_EQ(chat.messages[0].content, "Be short.\n\nAnd kind.");
  EXPECT_EQ(chat.messages[1].content, "Weather?");
  EXPECT_EQ(chat.messages[2].reasoning, "hm");
  EXPECT_EQ(chat.messages[2].content, "I look.");
  EXPECT_EQ(chat.messages[2].tool_calls.size(), 2U);
  EXPECT_EQ(chat.messages[3].content, "of f");
  EXPECT_EQ(chat.messages[4].content, "of g");
  EXPECT_EQ(chat.tools.list[0]["function"]["description"], "d");
  EXPECT_TRUE(chat.tools.strict && !chat.tools.parallel);
  EXPECT_EQ(chat.tools.only, "f");
  EXPECT_EQ(chat.schema, R"({"type":"object"})");
  EXPECT_EQ(chat.think, false);
  EXPECT_EQ(chat.max_tokens, 9);
  EXPECT_EQ(read_response({{"input", "x"}}).messages[0].role, "user");

  const auto logprobs = [](const char* fields) {
    Json body = Json::parse(fields);
    body["input"] = "x";
    return read_response(body).logprobs;
  };
  EXPECT_EQ(logprobs(R"({"include": ["message.output_text.logprobs"], "top_logprobs": 3})"), 3);
  EXPECT_EQ(logprobs(R"({"include": ["reasoning.encrypted_content", "message.output_text.logprobs"]})"), 0);
  EXPECT_EQ(logprobs(R"({"include": ["reasoning.encrypted_content"], "top_logprobs": 3})"), std::nullopt);
  EXPECT_EQ(logprobs(R"({"top_logprobs": 3})"), std::nullopt);
}

TEST(ReadResponse, RefusalsNameTheField) {
  const auto expect = [](const char* name, const char* fields) {
    Json body = Json::parse(fields);
    if (!body.contains("input")) body["input"] = "x";
    try {
      read_response(body);
      ADD_FAILURE() << fields;
    } catch (const BadRequest& error) {
      EXPECT_EQ(error.parameter(), name) << fields;
    }
  };
  expect("input", R"({"input": []})");
  expect("input", R"({"input": 3})");
  expect("input", R"({"input": [3]})");
  expect("input", R"({"input": [{"type": "item_reference", "id": "x"}]})");
  expect("input", R"({"input": [{"role": "user", "content": [{"type": "input_image"}]}]})");
  expect("input", R"({"input": [{"type": "function_call_output", "call_id": "a", "output": "x"}]})");
  expect("previous_response_id", R"({"previous_response_id": "resp_1"})");
  expect("conversation", R"({"conversation": "c"})");
  expect("background", R"({"background": true})");
  expect("tools", R"({"tools": [{"type": "web_search"}]})");
  expect("tool_choice", R"({"tool_choice": "required"})");
  expect("text.format", R"({"text": {"format": {"type": "yaml"}}})");
  expect("top_logprobs", R"({"top_logprobs": 21})");
  expect("include", R"({"include": "message.output_text.logprobs"})");
  expect("max_output_tokens", R"({"max_output_tokens": "many"})");
}

TEST(Responses, StreamAndWholeAnswerAreEqual) {
  Server server;
  const Json body = {
      {"input", kQuestion}, {"temperature", 0}, {"max_output_tokens", 12}, {"reasoning", {{"effort", "none"}}}};
  const Json whole = server.post("/v1/responses", body);
  const std::vector<Event> events = events_of(server.raw_stream("/v1/responses", body));
  const Json streamed = events.back().data["response"];
  EXPECT_EQ(streamed["status"], whole["status"]);
  EXPECT_EQ(streamed["usage"]["output_tokens"], whole["usage"]["output_tokens"]);
  ASSERT_EQ(whole["output"].size(), 1U);
  EXPECT_EQ(streamed["output"][0]["content"], whole["output"][0]["content"]);
  EXPECT_EQ(server.post("/v1/responses", {{"input", "x"}, {"previous_response_id", "r"}}, 400)["error"]["param"],
            "previous_response_id");
}

// The same in the whole response, in the stream's last event, and, without bytes, in its deltas.
TEST(Responses, Logprobs) {
  Server server;
  const Json body = {
      {"input", kQuestion}, {"temperature", 0}, {"include", {"message.output_text.logprobs"}}, {"top_logprobs", 2}};
  const Json whole = server.post("/v1/responses", body);
  EXPECT_EQ(whole["top_logprobs"], 2);
  const Json& part = whole["output"][0]["content"][0];
  ASSERT_GT(part["logprobs"].size(), 3U);
  std::string text;
  for (const Json& token : part["logprobs"]) {
    text += token["token"].get<std::string>();
    EXPECT_EQ(token["bytes"].size(), token["token"].get<std::string>().size());
    EXPECT_LE(token["logprob"].get<double>(), 0);
    ASSERT_EQ(token["top_logprobs"].size(), 2U);
    EXPECT_EQ(token["top_logprobs"][0]["token"], token["token"]);
    EXPECT_GT(token["top_logprobs"][0]["logprob"], token["top_logprobs"][1]["logprob"]);
  }
  EXPECT_EQ(text, part["text"]);

  const auto without_bytes = [](Json logprobs) {
    for (Json& token : logprobs) {
      token.erase("bytes");
      for (Json& other : token["top_logprobs"]) other.erase("bytes");
    }
    return logprobs;
  };
  Json streamed = Json::array();
  const std::vector<Event> events = events_of(server.raw_stream("/v1/responses", body));
  for (const Event& event : events) {
    if (event.name == "response.output_text.delta") {
      for (const Json& token : event.data["logprobs"]) streamed.push_back(token);
    }
    if (event.name == "response.output_text.done") {
      EXPECT_EQ(event.data["logprobs"], without_bytes(part["logprobs"]));
    }
  }
  EXPECT_EQ(streamed, without_bytes(part["logprobs"]));
  EXPECT_EQ(events.back().data["response"]["output"][0]["content"], whole["output"][0]["content"]);

  Json silent = body;
  silent.erase("include");
  EXPECT_TRUE(server.post("/v1/responses", silent)["output"][0]["content"][0]["logprobs"].empty());
}

}  // namespace
}  // namespace thalweg::server
