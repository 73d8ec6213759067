#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/grammar_cache.h"
#include "server/http_server.h"
#include "thalweg/engine.h"

namespace thalweg::server {

struct ApiCall;
class LoggedResponse;

struct ApiOptions {
  std::vector<std::string> keys;  // one of which a request must bring; empty: none
  std::string model_name;         // as /v1/models gives it; requests may name any
  bool force_chat = false;        // conversations also with a model whose file has no chat template
  // Why no request can be answered any more, for /health; empty while all is well. Called by any thread.
  std::function<std::string()> failure;
  std::string allowed_origin;  // of pages elsewhere that may ask (CORS): an origin or "*"; empty: none
};

// What a request was, without its contents.
struct RequestLog {
  std::string method;
  std::string path;
  std::string remote;
  int status = 0;
  Usage usage;
  double seconds = 0;
};

// The paths of the server: OpenAI's completions, chat completions and responses, Anthropic's messages, models, tokens,
// health, metrics and the page.
class Api {
 public:
  using OnRequest = std::function<void(const RequestLog&)>;  // after each answer; called by any thread

  Api(Engine& engine, ApiOptions options, OnRequest on_request = {});

  void handle(const HttpRequest& request, const std::shared_ptr<HttpResponse>& response);

  // From now on /health says that the server is about to stop.
  void stop() { stopping_ = true; }

 private:
  struct Path;
  static const std::vector<Path>& paths();

  bool is_authorized(const HttpRequest& request) const;
  HttpHeaders common_headers(const HttpRequest& request) const;
  void route(const HttpRequest& request, const std::shared_ptr<LoggedResponse>& response);

  void send_page(const HttpRequest& request, const std::shared_ptr<LoggedResponse>& response);
  void send_health(const HttpRequest& request, const std::shared_ptr<LoggedResponse>& response);
  void send_metrics(const HttpRequest& request, const std::shared_ptr<LoggedResponse>& response);
  void send_models(const HttpRequest& request, const std::shared_ptr<LoggedResponse>& response);
  void send_tokens(const HttpRequest& request, const std::shared_ptr<LoggedResponse>& response);
  void send_text(const HttpRequest& request, const std::shared_ptr<LoggedResponse>& response);
  // One of the APIs that generate.
  template <void (*kAnswer)(const ApiCall&)>
  void generate(const HttpRequest& request, const std::shared_ptr<LoggedResponse>& response);

  Engine& engine_;
  ApiOptions options_;
  OnRequest on_request_;
  GrammarCache grammars_;
  std::int64_t started_;  // seconds since 1970
  std::atomic<bool> stopping_ = false;
};

}  // namespace thalweg::server
