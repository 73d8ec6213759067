#pragma once

// A server over an engine with the shipped model.

#include <gtest/gtest.h>

#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/api.h"
#include "server/client.h"
#include "server/json.h"

namespace thalweg::server {

inline constexpr const char* kQuestion = "Anna put the ball in the box. Where is the ball?";

inline Model shipped_model() {
  ModelOptions options;
  options.device = kCpu;
  options.threads = 2;
  options.context = 4096;
  options.sequences = 2;
  return Model::load(THALWEG_MODEL, options);
}

struct Event {
  std::string name;  // empty if it has none
  Json data;
};

inline std::vector<Event> events_of(const std::string& stream) {
  std::vector<Event> events;
  std::string name;
  std::istringstream lines(stream);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("event: ")) name = line.substr(7);
    if (!line.starts_with("data: ")) continue;
    const std::string data = line.substr(6);
    events.push_back({std::exchange(name, {}), data == "[DONE]" ? Json(data) : Json::parse(data)});
  }
  return events;
}

inline std::vector<std::string> names_of(const std::vector<Event>& events) {
  std::vector<std::string> names;
  for (const Event& event : events) names.push_back(event.name);
  return names;
}

class Server {
 public:
  explicit Server(ApiOptions options = chat_options(), const EngineOptions& engine_options = {})
      : engine_(shipped_model(), engine_options), api_(engine_, std::move(options), [this](const RequestLog& log) {
          const std::lock_guard lock(mutex_);
          logs_.push_back(log);
        }) {
    HttpOptions http;
    http.port = 0;
    http_ = std::make_unique<HttpServer>(
        http, [this](const HttpRequest& request, const std::shared_ptr<HttpResponse>& response) {
          api_.handle(request, response);
        });
  }
  ~Server() {
    engine_.drain(0);
    http_.reset();
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  static ApiOptions chat_options() {
    ApiOptions options;
    options.model_name = "story";
    options.force_chat = true;
    return options;
  }

  Engine& engine() { return engine_; }
  Api& api() { return api_; }
  std::uint16_t port() const { return http_->port(); }

  std::string ask(const std::string& method, const std::string& path, const std::string& body = {},
                  const std::string& headers = {}) const {
    return Client(port()).request(method, path, body, headers);
  }
  Json post(const std::string& path, const Json& body, int status = 200) const {
    const std::string response = ask("POST", path, body.dump());
    EXPECT_EQ(status_of(response), status) << response;
    return Json::parse(response.substr(response.find("\r\n\r\n") + 4), nullptr, false);
  }
  // The text of a stream, with its head and the sizes of chunks.
  std::string raw_stream(const std::string& path, Json body) const {
    body["stream"] = true;
    const std::string text = body.dump();
    Client client(port());
    client.send("POST " + path + " HTTP/1.1\r\nHost: x\r\nContent-Length: " + std::to_string(text.size()) + "\r\n\r\n" +
                text);
    std::string response = client.read_until("0\r\n\r\n");
    EXPECT_EQ(status_of(response), 200) << response;
    return response;
  }
  // The data of the events of OpenAI's completions, without [DONE], which must be the last.
  std::vector<Json> stream(const std::string& path, const Json& body) const {
    std::vector<Json> data;
    for (Event& event : events_of(raw_stream(path, body))) data.push_back(std::move(event.data));
    EXPECT_FALSE(data.empty());
    if (data.empty()) return data;
    EXPECT_EQ(data.back(), "[DONE]");
    data.pop_back();
    return data;
  }
  std::vector<RequestLog> logs() {
    const std::lock_guard lock(mutex_);
    return logs_;
  }

 private:
  std::mutex mutex_;
  std::vector<RequestLog> logs_;
  Engine engine_;
  Api api_;
  std::unique_ptr<HttpServer> http_;
};

}  // namespace thalweg::server
