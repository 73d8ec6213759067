#include "server/api.h"

#include <algorithm>
#include <utility>

#include "server/anthropic.h"
#include "server/fields.h"
#include "server/logged_response.h"
#include "server/metrics.h"
#include "server/models.h"
#include "server/openai_chat.h"
#include "server/openai_completions.h"
#include "server/openai_format.h"
#include "server/page.h"
#include "server/responses.h"

namespace thalweg::server {
namespace {

constexpr const char* kJson = "application/json";
constexpr const char* kPrometheus = "text/plain; version=0.0.4; charset=utf-8";

// Takes as long for a wrong key as for a right one, but for its length.
bool is_same(std::string_view a, std::string_view b) {
  unsigned difference = a.size() == b.size() ? 0 : 1;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference |= static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(i < b.size() ? b[i] : 0);
  }
  return difference == 0;
}

bool is_anthropic(const HttpRequest& request) {
  return request.path.starts_with("/v1/messages") || !request.header("anthropic-version").empty();
}

}  // namespace

struct Api::Path {
  std::string_view path;
  bool get;   // or HEAD; else POST
  bool open;  // to requests without a key
  void (Api::*answer)(const HttpRequest&, const std::shared_ptr<LoggedResponse>&);
};

template <void (*kAnswer)(const ApiCall&)>
void Api::generate(const HttpRequest& request, const std::shared_ptr<LoggedResponse>& response) {
  const Json body = parse_body(request.body);
  kAnswer({engine_, grammars_, options_.model_name, options_.force_chat, body, response, response});
}

const std::vector<Api::Path>& Api::paths() {
  static const std::vector<Path> kPaths = {
      {"/", true, true, &Api::send_page},
      {"/health", true, true, &Api::send_health},
      {"/metrics", true, false, &Api::send_metrics},
      {"/tokenize", false, false, &Api::send_tokens},
      {"/detokenize", false, false, &Api::send_text},
      {"/v1/models", true, false, &Api::send_models},
      {"/v1/completions", false, false, &Api::generate<answer_completion>},
      {"/v1/chat/completions", false, false, &Api::generate<answer_chat_completion>},
      {"/v1/responses", false, false, &Api::generate<answer_response>},
      {"/v1/messages", false, false, &Api::generate<answer_message>},
      {"/v1/messages/count_tokens", false, false, &Api::generate<count_message_tokens>},
  };
  return kPaths;
}

Api::Api(Engine& engine, ApiOptions options, OnRequest on_request)
    : engine_(engine), options_(std::move(options)), on_request_(std::move(on_request)), started_(unix_seconds()) {}

bool Api::is_authorized(const HttpRequest& request) const {
  if (options_.keys.empty()) return true;
  std::string_view key = request.header("authorization");
  constexpr std::string_view kBearer = "Bearer ";
  key = key.starts_with(kBearer) ? key.substr(kBearer.size()) : request.header("x-api-key");
  bool found = false;
  for (const std::string& known : options_.keys) found |= is_same(key, known);
  return found;
}

HttpHeaders Api::common_headers(const HttpRequest& request) const {
  HttpHeaders common = {{"X-Content-Type-Options", "nosniff"}};
  const std::string_view origin = request.header("origin");
  const std::string& allowed = options_.allowed_origin;
  if (!allowed.empty() && (allowed == "*" || allowed == origin)) {
    common.emplace_back("Access-Control-Allow-Origin", allowed == "*" ? "*" : std::string(origin));
    common.emplace_back("Access-Control-Allow-Headers", "authorization, content-type, x-api-key, anthropic-version");
    common.emplace_back("Access-Control-Allow-Methods", "GET, POST");
    common.emplace_back("Vary", "Origin");
  }
  return common;
}

void Api::handle(const HttpRequest& request, const std::shared_ptr<HttpResponse>& response) {
  const auto logged =
      std::make_shared<LoggedResponse>(response, RequestLog{request.method, request.path, request.remote, 0, {}, 0},
                                       on_request_, common_headers(request));
  const auto fail = [&](int status, const std::string& message, const std::string& parameter = {}) {
    HttpHeaders headers;
    if (status == 503 || status == 429) headers.emplace_back("Retry-After", "1");
    if (status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
    logged->send(status, kJson,
                 is_anthropic(request) ? anthropic_error(status, message) : openai_error(status, message, parameter),
                 headers);
  };
  try {
    route(request, logged);
  } catch (const BadRequest& error) {
    fail(error.status(), error.what(), error.parameter());
  } catch (const Refused& error) {
    fail(stopping_ ? 503 : 429, error.what());
  } catch (const Error& error) {
    fail(400, error.what(), error.argument());
  } catch (const std::exception& error) {
    fail(500, error.what());
  }
}

void Api::route(const HttpRequest& request, const std::shared_ptr<LoggedResponse>& response) {
  if (request.method == "OPTIONS") return response->send(204, "text/plain", "", {});
  const std::vector<Path>& all = paths();
  auto path = std::find_if(all.begin(), all.end(), [&](const Path& known) { return known.path == request.path; });
  if (path == all.end() && request.path == "/v1/models/" + options_.model_name) {
    path = std::find_if(all.begin(), all.end(), [](const Path& known) { return known.path == "/v1/models"; });
  }
  if ((path == all.end() || !path->open) && !is_authorized(request)) {
    throw BadRequest("a key is needed: Authorization: Bearer KEY, or X-Api-Key: KEY", {}, 401);
  }
  if (path == all.end()) throw BadRequest("there is no " + request.path, {}, 404);
  const bool get = request.method == "GET" || request.method == "HEAD";
  if (path->get ? !get : request.method != "POST") {
    throw BadRequest(request.method + " is not for " + request.path, {}, 405);
  }
  (this->*path->answer)(request, response);
}

void Api::send_page(const HttpRequest&, const std::shared_ptr<LoggedResponse>& response) {
  response->send(200, "text/html; charset=utf-8", page(),
                 {{"Content-Security-Policy", page_policy()}, {"Referrer-Policy", "no-referrer"}});
}

void Api::send_health(const HttpRequest&, const std::shared_ptr<LoggedResponse>& response) {
  const std::string failure = options_.failure ? options_.failure() : std::string();
  if (!failure.empty()) {
    response->send(503, kJson, dump({{"status", "failed"}, {"error", failure}}), {});
    return;
  }
  const bool well = !stopping_;
  response->send(well ? 200 : 503, kJson, well ? R"({"status":"ok"})" : R"({"status":"stopping"})", {});
}

void Api::send_metrics(const HttpRequest&, const std::shared_ptr<LoggedResponse>& response) {
  response->send(200, kPrometheus, metrics_text(engine_.stats()), {});
}

void Api::send_models(const HttpRequest& request, const std::shared_ptr<LoggedResponse>& response) {
  const ServedModel model{options_.model_name, started_, engine_.model()};
  const bool list = request.path == "/v1/models";
  response->send(200, kJson, is_anthropic(request) ? anthropic_models(model, list) : openai_models(model, list), {});
}

void Api::send_tokens(const HttpRequest& request, const std::shared_ptr<LoggedResponse>& response) {
  const Json body = parse_body(request.body);
  const bool special = bool_field(body, "parse_special").value_or(true);
  const Json tokens = engine_.model().tokenize(required_string(body, "content"), special);
  response->send(200, kJson, dump({{"tokens", tokens}}), {});
}

void Api::send_text(const HttpRequest& request, const std::shared_ptr<LoggedResponse>& response) {
  const Json body = parse_body(request.body);
  const Json* ids = list_field(body, "tokens");
  if (ids == nullptr) throw BadRequest("'tokens' must be a list of token ids", "tokens");
  std::vector<std::int32_t> tokens;
  for (const Json& id : *ids) {
    if (!id.is_number_integer()) throw BadRequest("'tokens' must be a list of token ids", "tokens");
    const auto value = id.get<std::int64_t>();
    if (value < 0 || value >= engine_.model().info().vocabulary) {
      throw BadRequest("'tokens': there is no token " + std::to_string(value), "tokens");
    }
    tokens.push_back(static_cast<std::int32_t>(value));
  }
  response->send(200, kJson, dump({{"content", engine_.model().detokenize(tokens)}}), {});
}

}  // namespace thalweg::server
