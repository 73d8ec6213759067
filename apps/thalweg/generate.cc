#include <fmt/core.h>
#include <unistd.h>

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "answer.h"
#include "interrupt.h"
#include "io/model_files.h"
#include "logprobs.h"
#include "model_commands.h"
#include "model_options.h"
#include "session_file.h"
#include "streams.h"
#include "terminal.h"

namespace thalweg::app {
namespace {

struct Options {
  LoadOptions load;
  Sampling sampling;
  std::string prompt;
  std::string file;
  std::string session;
  bool session_new = false;  // begin anew, and keep the file under another name
  std::vector<std::int32_t> token_ids;
  std::int64_t max_tokens = 256;
  std::optional<std::int64_t> logprobs;  // how many alternatives
  bool has_prompt = false;
  bool has_token_ids = false;  // ids instead of text, in and out
  bool json = false;
};

const char* describe_reason(StopReason reason) {
  switch (reason) {
    case StopReason::kEndToken:
      return "end";
    case StopReason::kLength:
      return "length";
    case StopReason::kContext:
      return "context";
    case StopReason::kCaller:
      return "interrupted";
  }
  return "?";
}

// What the run reads, none of which may become the session.
std::vector<std::string> input_files(const Options& options) {
  std::vector<std::string> files = io::model_files(model_file(options.load.path));
  if (!options.file.empty()) files.push_back(options.file);
  return files;
}

// The prompt's text; empty to continue a session without a new prompt.
std::string read_prompt(const Options& options, bool continues) {
  if (options.has_prompt) return options.prompt;
  if (!options.file.empty()) return read_text(options.file);
  if (isatty(STDIN_FILENO) == 1) {
    if (continues) return {};
    throw std::runtime_error("there is no prompt: give one with -p, with -f FILE or on stdin");
  }
  return read_text("-");
}

// "1,2,3": what --token-ids takes.
std::string join(const std::vector<std::int32_t>& ids) {
  std::string list;
  for (std::int32_t id : ids) list += (list.empty() ? "" : ",") + std::to_string(id);
  return list;
}

void print_json(const Options& options, const Generated& generated, const std::string& text, const Model& model,
                const LogprobList& logprobs) {
  const auto rate = [](std::int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  nlohmann::json result = {
      {"tokens", generated.tokens},
      {"stopped", describe_reason(generated.reason)},
      {"threads", model.threads()},
      {"prefill",
       {{"tokens", generated.prompt_tokens},
        {"seconds", generated.prefill_seconds},
        {"tokens_per_second", rate(generated.prompt_tokens, generated.prefill_seconds)}}},
      {"decode",
       {{"tokens", generated.steps},
        {"seconds", generated.decode_seconds},
        {"tokens_per_second", rate(generated.steps, generated.decode_seconds)}}},
  };
  if (options.load.draft != DraftMode::kOff) {
    result["draft"] = {{"runs", generated.runs}, {"drafts", generated.drafts}, {"accepted", generated.drafts_accepted}};
  }
  if (!options.has_token_ids) result["text"] = text;
  if (options.logprobs) result["logprobs"] = logprobs.json();
  if (options.sampling.temperature > 0) result["seed"] = options.sampling.seed;
  print("{}\n", result.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
}

int generate(const Options& options) {
  std::optional<SessionFile> session;
  if (!options.session.empty() && is_first_rank())
    session.emplace(options.session, input_files(options), options.session_new);
  Model model = load_model(options.load);
  Sequence sequence = model.start();
  const bool continues = session && session->restore(sequence);
  std::vector<std::int32_t> prompt = options.token_ids;
  if (!options.has_token_ids) {
    require_tokenizer(model);
    prompt = model.tokenize(read_prompt(options, continues));
  }
  if (prompt.empty() && !continues) throw std::runtime_error("the prompt is empty: give some text with -p or -f");
  const std::int64_t total = static_cast<std::int64_t>(prompt.size() + sequence.tokens().size());
  if (total > model.context()) {
    throw std::runtime_error(fmt::format("the text has {} tokens and the context {}: give a shorter one, or --context",
                                         total, model.context()));
  }

  const InterruptWatch interrupts;
  std::string text;
  const auto print_bytes = [&](std::string_view bytes) {
    if (options.json) {
      text += bytes;
      return !InterruptWatch::pressed();
    }
    return write_now(bytes) && !InterruptWatch::pressed();
  };
  std::function<bool(std::string_view bytes)> on_bytes;
  if (!options.has_token_ids) on_bytes = print_bytes;
  LogprobList logprobs(model, static_cast<std::size_t>(options.logprobs.value_or(0)));
  OnLogits on_logits;
  if (options.logprobs) on_logits = [&](auto token, auto logits) { logprobs.add(token, logits); };
  const Generated generated =
      answer(model, sequence, prompt, options.sampling, options.max_tokens, on_bytes, on_logits);
  if (options.json) {
    print_json(options, generated, text, model, logprobs);
  } else {
    print("{}\n", options.has_token_ids ? join(generated.tokens) : "");
  }
  // Whatever became of the output, the session is saved.
  if (session && !sequence.tokens().empty()) {
    const std::string kept = session->save(sequence);
    if (!kept.empty()) note("the file that was there is {} now\n", kept);
  }
  if (generated.reason == StopReason::kContext) note("the context of {} is full\n", model.context());
  if (!quiet()) {
    note("{}; {} threads{}\n", describe_speed(generated), model.threads(), describe_seed(options.sampling));
  }
  flush_output();
  return InterruptWatch::exit_code();
}

}  // namespace

void add_generate(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("generate", "Continue a text");
  auto options = std::make_shared<Options>();
  add_load_options(*command, options->load);
  add_draft_options(*command, options->load);
  CLI::Option* prompt = command->add_option("-p,--prompt", options->prompt, "The text; without it, see -f, or stdin");
  CLI::Option* file =
      command->add_option("-f,--file", options->file, "Read the text from this file, - for stdin")->excludes(prompt);
  CLI::Option* token_ids =
      command
          ->add_option("--token-ids", options->token_ids,
                       "The prompt as token ids, 1,2,3; prints ids instead of text, and needs no tokenizer")
          ->delimiter(',')
          ->allow_extra_args(false)
          ->excludes(prompt)
          ->excludes(file);
  command->add_option("-n,--tokens,--n-predict,--predict", options->max_tokens, "Most tokens to generate")
      ->check(whole_number(0, kMostCount))
      ->capture_default_str();
  add_sampling_options(*command, options->sampling);
  command->add_option("--session", options->session,
                      "Continue the session in this file, if it exists, and save to it at the end");
  command->add_flag("--session-new", options->session_new,
                    "Begin the session anew, and keep the file that is there under another name");
  CLI::Option* json = command->add_flag("--json", options->json, "Print text, tokens and timings as JSON");
  command
      ->add_option("--logprobs", options->logprobs,
                   "Also print ln of each token's probability, and this many of the likeliest tokens; needs --json")
      ->check(whole_number(0, 1000))
      ->needs(json);
  command->callback([options, prompt, token_ids, &exit_code] {
    options->has_token_ids = token_ids->count() > 0;
    options->has_prompt = prompt->count() > 0;
    exit_code = generate(*options);
  });
}

}  // namespace thalweg::app
