#include <fmt/core.h>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "answer.h"
#include "interrupt.h"
#include "message_reader.h"
#include "model_commands.h"
#include "model_options.h"
#include "streams.h"
#include "terminal.h"

namespace thalweg::app {
namespace {

struct Options {
  LoadOptions load;
  Sampling sampling;
  std::string system;
  std::string think = "auto";
  std::int64_t max_tokens = 4096;
  bool force = false;  // also without a chat template
};

// Other models would answer with noise.
void require_chat_template(const Model& model) {
  if (model.info().has_chat_template) return;
  throw std::runtime_error(model.info().path +
                           " has no chat template, so it was not made for conversations: continue a text with "
                           "`thalweg generate`, or talk to it all the same with --force");
}

// A conversation at the terminal, or with lines from a pipe.
class Chat {
 public:
  explicit Chat(const Options& options)
      : options_(options), model_(load_model(options.load)), sequence_(model_.start()) {}

  int run() {
    require_tokenizer(model_);
    if (!options_.force) require_chat_template(model_);
    const InterruptWatch interrupts;
    if (messages_.is_terminal()) {
      note(
          "Ctrl-C stops an answer, Ctrl-D ends; /clear starts anew. A \\ at the end of a line continues the "
          "message.\n");
    }
    std::string message;
    while (!InterruptWatch::asked_to_end() && messages_.read(message)) {
      if (message == "/clear") {
        sequence_.clear();
      } else if (message == "/exit") {
        break;
      } else if (message.starts_with('/')) {
        note("there are /clear and /exit\n");
      } else if (message.find_first_not_of(" \t\r\n") != std::string::npos) {
        answer_to(message);
      }
    }
    if (messages_.is_terminal()) print("\n");
    flush_output();
    return InterruptWatch::exit_code();
  }

 private:
  void answer_to(const std::string& message) {
    std::optional<bool> think;
    if (options_.think != "auto") think = options_.think == "on";
    std::vector<std::int32_t> prompt;
    if (sequence_.tokens().empty()) {
      std::vector<ChatMessage> messages;
      if (!options_.system.empty()) messages.push_back({"system", options_.system});
      messages.push_back({"user", message});
      prompt = model_.chat_prompt(messages, {.think = think}).tokens;
    } else {
      prompt = model_.chat_continuation(message, think);
    }
    const auto used = static_cast<std::int64_t>(sequence_.tokens().size() + prompt.size());
    if (used >= model_.context()) {
      note("the conversation would have {} tokens and the context {}: /clear starts anew\n", used, model_.context());
      return;
    }
    const Generated generated =
        answer(model_, sequence_, prompt, options_.sampling, options_.max_tokens,
               [](std::string_view bytes) { return write_now(bytes) && !InterruptWatch::pressed(); });
    InterruptWatch::take();
    print("\n");
    flush_output();
    if (generated.reason == StopReason::kContext) note("the context is full: /clear starts anew\n");
    if (!quiet()) note("({}{})\n", describe_speed(generated), describe_seed(options_.sampling));
  }

  const Options& options_;
  Model model_;
  Sequence sequence_;
  MessageReader messages_;
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
  add_draft_options(*command, options->load);
  command->add_option("--system,--system-prompt", options->system, "The system message; -sys is the same");
  command
      ->add_option("--think", options->think,
                   "Whether the model thinks before it answers: on, off, or auto for what it does by itself")
      ->check(CLI::IsMember({"on", "off", "auto"}))
      ->capture_default_str();
  command->add_option("-n,--tokens,--n-predict,--predict", options->max_tokens, "Most tokens of an answer")
      ->check(whole_number(1, kMostCount))
      ->capture_default_str();
  command->add_flag("--force", options->force, "Talk to a model that has no chat template");
  add_sampling_options(*command, options->sampling);
  command->callback([options, &exit_code] { exit_code = Chat(*options).run(); });
}

}  // namespace thalweg::app
