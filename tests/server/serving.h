#pragma once

// A server over an engine with the shipped model.

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "convert/synthesize.h"
#include "server/api.h"
#include "server/client.h"
#include "server/json.h"

namespace thalweg::server {

inline constexpr const char* kQuestion = "Anna put the ball in the box. Where is the ball?";

inline Model load_model(const std::string& path) {
  ModelOptions options;
  options.device = kCpu;
  options.threads = 2;
  options.context = 4096;
  options.sequences = 2;
  return Model::load(path, options);
}

inline Model shipped_model() { return load_model(THALWEG_MODEL); }

// The shipped model from a file that has its chat template under a name that nothing reads. The architecture then
// decides on the format: Qwen3.5's, with calls as XML and a thinking mode; conversations need force_chat.
inline Model model_without_template() {
  std::ifstream shipped(THALWEG_MODEL, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(shipped)), {});
  const std::string key = "tokenizer.chat_template";
  const std::size_t at = bytes.find(key);
  EXPECT_NE(at, std::string::npos);
  if (at != std::string::npos) bytes.replace(at, key.size(), "tokenizer.lost_template");  // as long
  std::string path = (std::filesystem::temp_directory_path() / "thalweg-server-XXXXXX.gguf").string();
  const int file = mkstemps(path.data(), 5);
  EXPECT_GE(file, 0) << path;
  close(file);
  std::ofstream(path, std::ios::binary) << bytes;
  Model model = load_model(path);
  std::filesystem::remove(path);  // it stays mapped
  EXPECT_FALSE(model.info().has_chat_template);
  return model;
}

// A model of random weights, of a format that thinks by default.
inline Model random_model() {
  std::string path = (std::filesystem::temp_directory_path() / "thalweg-server-XXXXXX.gguf").string();
  const int file = mkstemps(path.data(), 5);
  EXPECT_GE(file, 0) << path;
  close(file);
  convert::SynthOptions synth;
  synth.gigabytes = 0.02;
  convert::synthesize(path, convert::type_mix("Q8_0"), synth);
  Model model = load_model(path);
  std::filesystem::remove(path);
  return model;
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
  explicit Server(ApiOptions options = named_options(), const EngineOptions& engine_options = {})
      : Server(shipped_model(), std::move(options), engine_options) {}
  Server(Model model, ApiOptions options, const EngineOptions& engine_options = {})
      : engine_(std::move(model), engine_options), api_(engine_, std::move(options), [this](const RequestLog& log) {
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

  static ApiOptions named_options() {
    ApiOptions options;
    options.model_name = "story";
    return options;
  }
  static ApiOptions forced_options() {
    ApiOptions options = named_options();
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
