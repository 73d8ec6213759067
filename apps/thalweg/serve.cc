#include <fmt/chrono.h>
#include <fmt/core.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "interrupt.h"
#include "model_commands.h"
#include "model_options.h"
#include "server/api.h"
#include "server/http_server.h"
#include "streams.h"
#include "terminal.h"

namespace thalweg::app {
namespace {

struct Options {
  LoadOptions load;
  EngineOptions engine;
  server::HttpOptions http;
  server::ApiOptions api;
  int parallel = 4;
  std::string key;
  std::string key_file;
  double drain = 30;
  std::string log = "text";
};

// A key for each line that is not empty.
std::vector<std::string> keys_of(const std::string& text) {
  std::vector<std::string> keys;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    std::string key = text.substr(begin, end - begin);
    while (!key.empty() && (key.back() == '\r' || key.back() == ' ')) key.pop_back();
    if (!key.empty()) keys.push_back(std::move(key));
    begin = end + 1;
  }
  return keys;
}

void read_keys(Options& options) {
  const char* given = std::getenv("THALWEG_API_KEY");
  if (!options.key.empty()) {
    options.api.keys = {options.key};
  } else if (!options.key_file.empty()) {
    options.api.keys = keys_of(read_text(options.key_file));
    if (options.api.keys.empty()) throw std::runtime_error(options.key_file + " has no key");
  } else if (given != nullptr && *given != '\0') {
    options.api.keys = {given};
  }
}

bool is_local(const std::string& host) { return host == "localhost" || host == "::1" || host.starts_with("127."); }

// One line, and never what was said.
void log_request(const server::RequestLog& log, bool json) {
  const std::string time = fmt::format(
      "{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::chrono::system_clock::to_time_t(std::chrono::system_clock::now())));
  if (json) {
    const nlohmann::json line = {{"time", time},
                                 {"remote", log.remote},
                                 {"method", log.method},
                                 {"path", log.path},
                                 {"status", log.status},
                                 {"seconds", log.seconds},
                                 {"prompt_tokens", log.usage.prompt_tokens},
                                 {"cached_tokens", log.usage.cached_tokens},
                                 {"generated_tokens", log.usage.generated_tokens}};
    note("{}\n", line.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace));
    return;
  }
  // The path is the client's: without what would begin another line or steer a terminal.
  std::string path = log.path.substr(0, 200);
  for (char& c : path) {
    if (c < ' ' || c > '~') c = '?';
  }
  std::string tokens;
  if (log.usage.prompt_tokens > 0) {
    tokens = fmt::format(", prompt {} tokens ({} cached), {} generated", log.usage.prompt_tokens,
                         log.usage.cached_tokens, log.usage.generated_tokens);
  }
  note("{} {} {} {} {} in {:.0f} ms{}\n", time, log.remote, log.method, path, log.status, log.seconds * 1e3, tokens);
}

int serve(Options& options) {
  read_keys(options);
  Model model = load_model(options.load, options.parallel);
  require_tokenizer(model);
  options.api.model_name = std::filesystem::path(model.info().path).stem().string();
  const std::string device = model.info().device;
  if (const std::shared_ptr<Ranks> ranks = command_ranks()) {
    options.api.failure = [ranks] { return ranks->failure(); };
  }
  const InterruptWatch interrupts;
  Engine engine(std::move(model), options.engine);
  server::Api api(engine, options.api, [&](const server::RequestLog& log) {
    if (options.log != "off") log_request(log, options.log == "json");
  });
  bool finished = true;
  {
    const server::HttpServer http(
        options.http, [&](const server::HttpRequest& request, const std::shared_ptr<server::HttpResponse>& response) {
          api.handle(request, response);
        });
    if (!is_local(options.http.host) && options.api.keys.empty()) {
      note("WARNING: everyone who reaches {} may use this server: give --api-key\n", options.http.host);
    }
    const bool v6 = options.http.host.find(':') != std::string::npos;
    const std::uint64_t cache = engine.stats().cache_device_budget;
    print("{} on {}, {} at once{}\nhttp://{}{}{}:{}/\n", options.api.model_name, device, options.parallel,
          cache > 0 ? ", " + format_bytes(cache) + " of the device for what is kept of prompts" : "", v6 ? "[" : "",
          options.http.host, v6 ? "]" : "", http.port());
    flush_output();
    while (!InterruptWatch::pressed() && !InterruptWatch::asked_to_end()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    if (!quiet()) note("stopping: {} requests run\n", engine.stats().running);
    api.stop();
    finished = engine.drain(options.drain);
  }
  if (!finished) note("requests were cut off after {} s\n", options.drain);
  return 0;
}

}  // namespace

void add_serve(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand(
      "serve", "Serve a model over HTTP, with OpenAI's and Anthropic's APIs and a page for browsers");
  auto options = std::make_shared<Options>();
  add_load_options(*command, options->load);
  add_draft_options(*command, options->load);
  command->add_option("--host", options->http.host, "Address to listen at")->capture_default_str();
  command->add_option("--port", options->http.port, "Port to listen at; 0 takes one that is free")
      ->capture_default_str();
  command->add_option("--api-key", options->key, "Key that requests must bring; better in THALWEG_API_KEY or a file");
  command->add_option("--api-key-file", options->key_file, "File with a key in each line");
  command->add_option("--parallel", options->parallel, "Requests that run at once")
      ->check(whole_number(1, 4096))
      ->capture_default_str();
  command->add_option("--queue", options->engine.queue, "Requests that may wait; further ones are refused")
      ->check(whole_number(0, 1'000'000))
      ->capture_default_str();
  command
      ->add_option("--cache-host", options->engine.cache_bytes,
                   "Memory for what is kept of prompts, as 512MiB or 4GiB; 0 for none")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("1GiB");
  command
      ->add_option("--cache-device", options->engine.cache_device_bytes,
                   "The same of the GPU's memory, before the host's; a quarter of what is free by default")
      ->transform(CLI::AsSizeValue(false));
  command->add_option("--cache-dir", options->engine.cache_dir,
                      "Folder that keeps it beyond the server's end; it will hold what was said");
  command->add_option("--cache-dir-size", options->engine.cache_dir_bytes, "Most bytes of that folder, as 64GiB")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("16GiB");
  command
      ->add_option_function<std::string>(
          "--cache-answers", [options](const std::string& mode) { options->engine.cache_answers = mode == "on"; },
          "Keep answers as well: the next turn computes what is new alone, by other roundings than a cold run")
      ->check(CLI::IsMember({"on", "off"}))
      ->default_str("off");
  command
      ->add_option("--prompt-share", options->engine.prompt_share, "Part of the time for prompts while others generate")
      ->check(number(0.01, 0.99))
      ->capture_default_str();
  command->add_option("--connections", options->http.connections, "Connections at once")
      ->check(whole_number(1, 1'000'000))
      ->capture_default_str();
  command->add_option("--most-body", options->http.body_bytes, "Most bytes of a request's body, as 16MiB")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("16MiB");
  command->add_option("--allow-origin", options->api.allowed_origin,
                      "Origin of pages elsewhere that may ask (CORS), or *; none by default");
  command->add_flag("--force", options->api.force_chat, "Conversations also with a model that has no chat template");
  command->add_option("--drain", options->drain, "Seconds that requests have to finish when the server is stopped")
      ->check(number(0.0, 86400.0))
      ->capture_default_str();
  command->add_option("--log", options->log, "A line for each request, on stderr: text, json or off")
      ->check(CLI::IsMember({"text", "json", "off"}))
      ->capture_default_str();
  command->callback([options, &exit_code] { exit_code = serve(*options); });
}

}  // namespace thalweg::app
