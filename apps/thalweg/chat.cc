#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "interrupt.h"
#include "model_commands.h"
#include "model_options.h"
#include "terminal.h"

namespace thalweg::app {
namespace {

struct Options {
  LoadOptions load;
  Sampling sampling;
  std::string system;
  std::string think = "auto";
  std::int64_t max_tokens = 4096;
};

// A conversation at the terminal, or with lines from a pipe.
class Chat {
 public:
  explicit Chat(const Options& options)
      : options_(options),
        model_(load_model(options.load)),
        sequence_(model_.start()),
        terminal_(isatty(STDIN_FILENO)) {}

  int run() {
    require_tokenizer(model_);
    if (terminal_)
      fmt::print(stderr,
                 "Ctrl-C stops an answer, Ctrl-D ends; /clear starts anew. A \\ at the end of a line continues the "
                 "message.\n");
    const InterruptWatch interrupts;
    std::string message;
    while (read_message(message)) {
      if (message == "/clear") {
        sequence_.clear();
      } else if (message == "/exit") {
        break;
      } else if (message.starts_with('/')) {
        fmt::print(stderr, "there are /clear and /exit\n");
      } else if (message.find_first_not_of(" \t\r\n") != std::string::npos) {
        answer(message);
      }
    }
    if (terminal_) fmt::print("\n");
    flush_output();
    return 0;
  }

 private:
  // Returns false at the end of the input.
  bool read_message(std::string& message) {
    message.clear();
    for (;;) {
      if (terminal_) {
        fmt::print("{}", message.empty() ? "> " : "  ");
        std::fflush(stdout);
      }
      std::string line;
      if (!std::getline(std::cin, line)) {
        if (!InterruptWatch::take()) return false;
        // Ctrl-C interrupted the read, and does not end the program.
        std::clearerr(stdin);
        std::cin.clear();
        message.clear();
        fmt::print("\n");
        continue;
      }
      const bool more = line.ends_with('\\');
      if (more) line.back() = '\n';
      message += line;
      if (!more) return true;
    }
  }

  void answer(const std::string& message) {
    std::optional<bool> think;
    if (options_.think != "auto") think = options_.think == "on";
    std::vector<std::int32_t> prompt;
    if (sequence_.tokens().empty()) {
      std::vector<ChatMessage> messages;
      if (!options_.system.empty()) messages.push_back({"system", options_.system});
      messages.push_back({"user", message});
      prompt = model_.chat_prompt(messages, think);
    } else {
      prompt = model_.chat_continuation(message, think);
    }
    const auto used = static_cast<std::int64_t>(sequence_.tokens().size() + prompt.size());
    if (used >= model_.context()) {
      fmt::print(stderr, "the conversation would have {} tokens and the context {}: /clear starts anew\n", used,
                 model_.context());
      return;
    }
    const auto print_bytes = [](std::string_view bytes) {
      std::fwrite(bytes.data(), 1, bytes.size(), stdout);
      std::fflush(stdout);
      return !InterruptWatch::pressed();
    };
    const Generated generated = model_.generate(sequence_, prompt, options_.sampling, options_.max_tokens, print_bytes,
                                                [] { return !InterruptWatch::pressed(); });
    InterruptWatch::take();
    fmt::print("\n");
    flush_output();
    if (generated.reason == StopReason::kContext) fmt::print(stderr, "the context is full: /clear starts anew\n");
    if (!quiet()) fmt::print(stderr, "({}{})\n", describe_speed(generated), describe_seed(options_.sampling));
  }

  const Options& options_;
  Model model_;
  Sequence sequence_;
  bool terminal_;
};

}  // namespace

void add_chat(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("chat", "Talk to a model");
  auto options = std::make_shared<Options>();
  // The recommendation of the models' authors for conversations.
  options->sampling.temperature = 0.7F;
  options->sampling.top_k = 20;
  options->sampling.top_p = 0.8F;
  add_load_options(*command, options->load);
  command->add_option("--system,--system-prompt", options->system, "The system message; -sys is the same");
  command
      ->add_option("--think", options->think,
                   "Whether the model thinks before it answers: on, off, or auto for what it does by itself")
      ->check(CLI::IsMember({"on", "off", "auto"}))
      ->capture_default_str();
  command->add_option("-n,--tokens,--n-predict,--predict", options->max_tokens, "Most tokens of an answer")
      ->check(whole_number(1, kMostCount))
      ->capture_default_str();
  add_sampling_options(*command, options->sampling);
  command->callback([options, &exit_code] { exit_code = Chat(*options).run(); });
}

}  // namespace thalweg::app
