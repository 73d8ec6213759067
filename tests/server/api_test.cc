// The server's paths over an engine with the shipped model.

#include "server/api.h"

#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "server/serving.h"

namespace thalweg::server {
namespace {

TEST(Api, Completions) {
  Server server;
  const Json body = {{"prompt", kQuestion}, {"temperature", 0}, {"max_tokens", 20}};
  const Json answer = server.post("/v1/completions", body);
  EXPECT_EQ(answer["object"], "text_completion");
  EXPECT_EQ(answer["choices"][0]["text"], " The ball is in the box.");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 7);
  EXPECT_EQ(answer["usage"]["total_tokens"], answer["usage"]["prompt_tokens"].get<int>() + 7);

  Json streamed = body;
  streamed["stream_options"] = {{"include_usage", true}};
  const std::vector<Json> events = server.stream("/v1/completions", streamed);
  std::string text;
  for (std::size_t i = 0; i + 1 < events.size(); ++i) text += events[i]["choices"][0]["text"].get<std::string>();
  EXPECT_EQ(text, " The ball is in the box.");
  EXPECT_EQ(events.back()["usage"], answer["usage"]);
  EXPECT_TRUE(events.back()["choices"].empty());
  EXPECT_EQ(events[events.size() - 2]["choices"][0]["finish_reason"], "stop");
}

TEST(Api, SeveralPromptsAndSeveralAnswers) {
  Server server;
  const Json tokens = server.post("/tokenize", {{"content", kQuestion}})["tokens"];
  const Json answer =
      server.post("/v1/completions", {{"prompt", {tokens, tokens}}, {"n", 2}, {"temperature", 0}, {"max_tokens", 3}});
  ASSERT_EQ(answer["choices"].size(), 4U);
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(answer["choices"][i]["index"], i);
    EXPECT_EQ(answer["choices"][i]["text"], " The ball is");
    EXPECT_EQ(answer["choices"][i]["finish_reason"], "length");
  }
  EXPECT_EQ(answer["usage"]["prompt_tokens"], 2 * tokens.size());
  EXPECT_EQ(answer["usage"]["completion_tokens"], 12);
}

TEST(Api, SeedsRepeat) {
  Server server;
  const Json body = {{"prompt", kQuestion}, {"temperature", 2}, {"max_tokens", 12}, {"seed", 7}, {"n", 2}};
  const Json first = server.post("/v1/completions", body)["choices"];
  EXPECT_EQ(server.post("/v1/completions", body)["choices"], first);
  EXPECT_NE(first[0]["text"], first[1]["text"]);
}

TEST(Api, Logprobs) {
  Server server;
  const Json completion =
      server.post("/v1/completions", {{"prompt", kQuestion}, {"temperature", 0}, {"max_tokens", 2}, {"logprobs", 3}});
  const Json& of_text = completion["choices"][0]["logprobs"];
  EXPECT_EQ(of_text["tokens"], Json({" The", " ball"}));
  EXPECT_EQ(of_text["text_offset"], Json({0, 4}));
  EXPECT_EQ(of_text["top_logprobs"][0].size(), 3U);
  EXPECT_LT(of_text["token_logprobs"][0].get<double>(), 0);

  const Json chat = server.post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", kQuestion}}}},
                                                         {"temperature", 0},
                                                         {"max_tokens", 2},
                                                         {"logprobs", true},
                                                         {"top_logprobs", 2}});
  const Json& content = chat["choices"][0]["logprobs"]["content"];
  ASSERT_EQ(content.size(), 2U);
  EXPECT_EQ(content[0]["top_logprobs"].size(), 2U);
  EXPECT_EQ(content[0]["top_logprobs"][0]["token"], content[0]["token"]);
}

TEST(Api, ChatIsThePromptOfTheModelsFormat) {
  Server server;
  const Json messages = {{{"role", "system"}, {"content", "You answer."}},
                         {{"role", "user"}, {"content", {{{"type", "text"}, {"text", kQuestion}}}}}};
  const Json body = {{"messages", messages}, {"temperature", 0}, {"max_tokens", 8}, {"reasoning_effort", "none"}};
  const Json answer = server.post("/v1/chat/completions", body);
  Request request;
  request.prompt =
      server.engine()
          .model()
          .chat_prompt(std::vector<ChatMessage>{{"system", "You answer."}, {"user", kQuestion}}, {.think = false})
          .tokens;
  EXPECT_EQ(answer["usage"]["prompt_tokens"], request.prompt.size());
  request.max_tokens = 8;
  TokenStream stream = server.engine().stream(std::move(request));
  std::string text;
  for (Output output; stream.next(output);) text += output.text;
  EXPECT_EQ(answer["choices"][0]["message"]["content"], text);
  EXPECT_EQ(answer["choices"][0]["message"]["role"], "assistant");

  std::string streamed;
  for (const Json& event : server.stream("/v1/chat/completions", body)) {
    EXPECT_EQ(event["object"], "chat.completion.chunk");
    streamed += event["choices"][0]["delta"].value("content", "");
  }
  EXPECT_EQ(streamed, text);
}

TEST(Api, AnswersInAConversation) {
  Server server;
  Json messages = {
      {{"role", "user"}, {"content", "Anna put the red ball in the kitchen. Tom took the lamp to the attic."}}};
  const auto ask = [&](const char* question) {
    messages.push_back({{"role", "user"}, {"content", question}});
    const Json answer = server.post("/v1/chat/completions", {{"messages", messages}, {"temperature", 0}});
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
    messages.push_back(answer["choices"][0]["message"]);
    return messages.back()["content"].get<std::string>();
  };
  messages.push_back({{"role", "assistant"}, {"content", "All right. What would you like to know?"}});
  EXPECT_EQ(ask("Where is the red ball?"), "The red ball is in the kitchen.");
  EXPECT_EQ(ask("And the lamp?"), "The lamp is in the attic.");
}

TEST(Api, AModeThatTheFormatLacksIsRefused) {
  Server server;
  const Json body = {{"messages", {{{"role", "user"}, {"content", kQuestion}}}},
                     {"chat_template_kwargs", {{"enable_thinking", true}}}};
  const Json error = server.post("/v1/chat/completions", body, 400)["error"];
  EXPECT_NE(error["message"].get<std::string>().find("no thinking mode"), std::string::npos) << error;
}

TEST(Api, AConversationIsCached) {
  Server server;
  std::string story;
  for (int i = 0; i < 60; ++i) story += "John went to the kitchen. Mary took the ball there. ";
  Json messages = {{{"role", "user"}, {"content", story + "Where is the ball?"}}};
  const auto ask = [&] {
    const Json answer =
        server.post("/v1/chat/completions",
                    {{"messages", messages}, {"temperature", 0}, {"max_tokens", 8}, {"reasoning_effort", "none"}});
    messages.push_back(answer["choices"][0]["message"]);
    messages.push_back({{"role", "user"}, {"content", "Where is John?"}});
    return answer["usage"];
  };
  const Json first = ask();
  EXPECT_EQ(first["prompt_tokens_details"]["cached_tokens"], 0);
  const Json second = ask();
  EXPECT_GE(second["prompt_tokens_details"]["cached_tokens"].get<int>() + 64, first["prompt_tokens"].get<int>());
}

TEST(Api, AnAnswerThatIsKeptIsNotComputedAgain) {
  EngineOptions options;
  options.cache_answers = true;
  Server server(shipped_model(), {}, options);
  Json messages = {{{"role", "user"}, {"content", "Anna put the ball in the box. Tom went to the attic."}}};
  int known = 0;
  for (const char* question : {"Where is the ball?", "Where is Tom?", "And Anna?", ""}) {
    const Json answer =
        server.post("/v1/chat/completions", {{"messages", messages}, {"temperature", 0}, {"max_tokens", 40}});
    const Json& usage = answer["usage"];
    EXPECT_EQ(usage["prompt_tokens_details"]["cached_tokens"], known);
    EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
    known = usage["prompt_tokens"].get<int>() + usage["completion_tokens"].get<int>();
    messages.push_back(answer["choices"][0]["message"]);
    messages.push_back({{"role", "user"}, {"content", question}});
  }
}

TEST(Api, BadRequestsNameTheField) {
  Server server;
  const auto expect = [&](const char* path, const Json& body, const char* parameter) {
    const Json answer = server.post(path, body, 400);
    EXPECT_EQ(answer["error"]["type"], "invalid_request_error");
    EXPECT_EQ(answer["error"]["param"], parameter) << answer.dump();
  };
  expect("/v1/completions", Json::object(), "prompt");
  expect("/v1/completions", {{"prompt", {1.5}}}, "prompt");
  expect("/v1/completions", {{"prompt", {1 << 30}}}, "prompt");
  expect("/v1/completions", {{"prompt", "x"}, {"temperature", 3}}, "temperature");
  expect("/v1/completions", {{"prompt", "x"}, {"n", 0}}, "n");
  expect("/v1/completions", {{"prompt", "x"}, {"stop", {"a", ""}}}, "stop");
  expect("/v1/completions", {{"prompt", "x"}, {"echo", true}}, "echo");
  expect("/v1/completions", {{"prompt", "x"}, {"seed", "s"}}, "seed");
  expect("/v1/completions", {{"prompt", std::string(100'000, 'x')}}, "prompt");
  expect("/v1/chat/completions", Json::object(), "messages");
  expect("/v1/chat/completions", {{"messages", {{{"role", "king"}, {"content", "x"}}}}}, "messages");
  expect("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", {{{"type", "image_url"}}}}}}}},
         "messages");
  EXPECT_EQ(status_of(server.ask("POST", "/v1/completions", "{\"prompt\": ")), 400);
  EXPECT_EQ(status_of(server.ask("POST", "/v1/completions", "[1]")), 400);
  EXPECT_EQ(status_of(server.ask("GET", "/nowhere")), 404);
  EXPECT_EQ(status_of(server.ask("GET", "/v1/completions")), 405);
  // Fields that the original knows and this server does not are ignored.
  server.post("/v1/completions", {{"prompt", "x"}, {"user", "me"}, {"store", false}, {"max_tokens", 1}});
}

TEST(Api, WithoutAChatTemplateCompletionsRemain) {
  Server server(model_without_template(), Server::named_options());
  const Json error =
      server.post("/v1/chat/completions", {{"messages", {{{"role", "user"}, {"content", "hi"}}}}}, 400)["error"];
  EXPECT_NE(error["message"].get<std::string>().find("/v1/completions works"), std::string::npos);
  const Json answer = server.post("/v1/completions", {{"prompt", kQuestion}, {"temperature", 0}, {"max_tokens", 20}});
  EXPECT_EQ(answer["choices"][0]["text"], " The ball is in the box.");
}

// Without a template the model has not learned to end its thoughts, though the format has a mode for them.
TEST(Api, ForcedConversationsThinkOnlyIfAsked) {
  Server server(model_without_template(), Server::forced_options());
  const auto prompt_tokens = [&](const Json& more) {
    Json body = {{"messages", {{{"role", "user"}, {"content", kQuestion}}}}, {"temperature", 0}, {"max_tokens", 4}};
    body.update(more);
    const Json answer = server.post("/v1/chat/completions", body);
    const Json& message = answer["choices"][0]["message"];
    const bool thinks = !message.value("reasoning_content", "").empty();
    EXPECT_EQ(message.value("content", "").empty(), thinks) << message;
    return std::pair(answer["usage"]["prompt_tokens"].get<std::size_t>(), thinks);
  };
  const auto expected = [&](bool think) {
    const std::vector<ChatMessage> messages = {{"user", kQuestion}};
    return std::pair(server.engine().model().chat_prompt(messages, {.think = think}).tokens.size(), think);
  };
  EXPECT_NE(expected(false).first, expected(true).first);
  EXPECT_EQ(prompt_tokens(Json::object()), expected(false));
  EXPECT_EQ(prompt_tokens({{"chat_template_kwargs", {{"enable_thinking", true}}}}), expected(true));
}

TEST(Api, Keys) {
  ApiOptions options = Server::named_options();
  options.keys = {"first", "second"};
  Server server(options);
  EXPECT_EQ(status_of(server.ask("GET", "/v1/models")), 401);
  EXPECT_EQ(status_of(server.ask("GET", "/v1/models", "", "Authorization: Bearer secon\r\n")), 401);
  EXPECT_EQ(status_of(server.ask("GET", "/v1/models", "", "Authorization: Bearer second\r\n")), 200);
  EXPECT_EQ(status_of(server.ask("GET", "/v1/models", "", "X-Api-Key: first\r\n")), 200);
  EXPECT_EQ(status_of(server.ask("GET", "/health")), 200);
  EXPECT_EQ(status_of(server.ask("GET", "/metrics")), 401);
}

TEST(Api, OtherOriginsOnlyIfAsked) {
  ApiOptions options = Server::named_options();
  Server closed(options);
  EXPECT_EQ(closed.ask("GET", "/health", "", "Origin: http://a.example\r\n").find("Access-Control"), std::string::npos);
  options.allowed_origin = "http://a.example";
  Server open(options);
  EXPECT_NE(open.ask("OPTIONS", "/v1/models", "", "Origin: http://a.example\r\n")
                .find("Access-Control-Allow-Origin: http://a.example\r\n"),
            std::string::npos);
  EXPECT_EQ(open.ask("GET", "/health", "", "Origin: http://b.example\r\n").find("Access-Control"), std::string::npos);
}

TEST(Api, MetricsCount) {
  Server server;
  server.post("/v1/completions", {{"prompt", kQuestion}, {"temperature", 0}, {"max_tokens", 3}});
  std::string metrics;
  for (int i = 0; i < 100 && metrics.find("\nthalweg_generated_tokens_total 3\n") == std::string::npos; ++i) {
    metrics = server.ask("GET", "/metrics");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (const char* line :
       {"\nthalweg_generated_tokens_total 3\n", "\nthalweg_requests_total 1\n", "\nthalweg_prompt_tokens_total 14\n",
        "\nthalweg_prompt_tokens_cached_total 0\n", "\n# TYPE thalweg_requests_running gauge\n"}) {
    EXPECT_NE(metrics.find(line), std::string::npos) << line << metrics;
  }
}

TEST(Api, TokensThereAndBack) {
  Server server;
  const std::string text = "Anna put the ball; na\xC3\xAFve \xE2\x82\xAC.";
  const Json tokens = server.post("/tokenize", {{"content", text}});
  EXPECT_EQ(server.post("/detokenize", tokens)["content"], text);
  server.post("/detokenize", {{"tokens", {-1}}}, 400);
}

TEST(Api, AClientThatGoesCancels) {
  Server server;
  {
    Client client(server.port());
    const std::string body =
        Json({{"prompt", kQuestion}, {"max_tokens", 4000}, {"temperature", 2}, {"stream", true}, {"n", 2}}).dump();
    client.send("POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(body.size()) +
                "\r\n\r\n" + body);
    client.read_until("data: ");
  }
  for (int i = 0; i < 500 && server.engine().stats().cancelled + server.engine().stats().finished < 2; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(server.engine().stats().running, 0);
}

TEST(Api, AFullQueueIsAnswered429) {
  EngineOptions options;
  options.queue = 1;
  Server server(Server::named_options(), options);
  const Json body = {{"prompt", kQuestion}, {"n", 16}, {"max_tokens", 4}};
  const std::string response = server.ask("POST", "/v1/completions", body.dump());
  EXPECT_EQ(status_of(response), 429);
  EXPECT_NE(response.find("Retry-After: "), std::string::npos);
}

TEST(Api, StoppingIsSaid) {
  Server server;
  server.api().stop();
  server.engine().drain(1);
  EXPECT_EQ(status_of(server.ask("GET", "/health")), 503);
  EXPECT_EQ(status_of(server.ask("POST", "/v1/completions", R"({"prompt": "x"})")), 503);
}

TEST(Api, LogsHaveNumbersAndNoContents) {
  Server server;
  server.post("/v1/completions", {{"prompt", kQuestion}, {"temperature", 0}, {"max_tokens", 3}});
  for (int i = 0; i < 100 && server.logs().empty(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  ASSERT_EQ(server.logs().size(), 1U);
  const RequestLog log = server.logs().front();
  EXPECT_EQ(log.path, "/v1/completions");
  EXPECT_EQ(log.status, 200);
  EXPECT_EQ(log.usage.prompt_tokens, 14);
  EXPECT_EQ(log.usage.generated_tokens, 3);
}

TEST(Api, ThePageNamesItsOwnScript) {
  Server server;
  const std::string response = server.ask("GET", "/");
  EXPECT_EQ(status_of(response), 200);
  EXPECT_NE(response.find("Content-Security-Policy: default-src 'none'; script-src 'sha256-"), std::string::npos);
  EXPECT_NE(response.find("</script>"), std::string::npos);
}

}  // namespace
}  // namespace thalweg::server
