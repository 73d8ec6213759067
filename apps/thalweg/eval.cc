#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "io/json_file.h"
#include "model_commands.h"
#include "model_options.h"
#include "progress.h"
#include "streams.h"
#include "terminal.h"

namespace thalweg::app {
namespace {

namespace fs = std::filesystem;

struct Options {
  LoadOptions load;
  std::vector<std::string> sets = {"models/eval/*.jsonl"};
  std::size_t limit = 0;
  int batch = 8;
  bool json = false;
  bool show = false;
};

struct Question {
  std::string set;
  std::string prompt;
  std::vector<ChatMessage> messages;  // a conversation, instead of the prompt
  std::string answer;
  std::int64_t tokens = 0;  // 0: not given
};

struct Score {
  std::size_t exact = 0;
  std::size_t total = 0;
  void add(bool right) {
    exact += right ? 1 : 0;
    ++total;
  }
  double share() const { return total > 0 ? static_cast<double>(exact) / static_cast<double>(total) : 0.0; }
};

// Whether a file name matches a pattern with one star.
bool matches(const std::string& name, const std::string& pattern) {
  const std::size_t star = pattern.find('*');
  if (star == std::string::npos) return name == pattern;
  const std::string head = pattern.substr(0, star);
  const std::string tail = pattern.substr(star + 1);
  return name.size() >= head.size() + tail.size() && name.starts_with(head) && name.ends_with(tail);
}

// Files, folders of .jsonl files, and patterns with a star that the shell did not expand.
std::vector<std::string> find_sets(const std::vector<std::string>& given) {
  std::vector<std::string> found;
  for (const std::string& entry : given) {
    fs::path folder = entry;
    std::string pattern = "*.jsonl";
    std::error_code missing;
    if (!fs::is_directory(folder, missing)) {
      if (entry.find('*') == std::string::npos) {
        found.push_back(entry);
        continue;
      }
      pattern = folder.filename().string();
      folder = folder.has_parent_path() ? folder.parent_path() : fs::path(".");
    }
    std::vector<std::string> here;
    for (const fs::directory_entry& file : fs::directory_iterator(folder, missing)) {
      if (matches(file.path().filename().string(), pattern)) here.push_back(file.path().string());
    }
    if (here.empty()) throw std::runtime_error("no file is called " + entry + ": name test sets with --set");
    std::sort(here.begin(), here.end());
    found.insert(found.end(), here.begin(), here.end());
  }
  return found;
}

std::vector<ChatMessage> read_messages(const std::string& line, const std::string& where) {
  std::vector<ChatMessage> messages;
  try {
    const nlohmann::json row = nlohmann::json::parse(line);
    for (const nlohmann::json& message : row.at("messages")) {
      messages.push_back({message.at("role").get<std::string>(), message.at("content").get<std::string>()});
    }
  } catch (const nlohmann::json::exception&) {
    throw std::runtime_error(where + R"(: "messages" has to be a list of {"role", "content"})");
  }
  return messages;
}

std::vector<Question> read_set(const std::string& path, std::size_t limit) {
  std::vector<Question> questions;
  std::istringstream lines(read_text(path));
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    if (limit > 0 && questions.size() == limit) break;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    const io::JsonObject object = io::JsonObject::parse(line, where);
    Question question;
    question.set = fs::path(path).stem().string();
    if (object.has("messages")) {
      question.messages = read_messages(line, where);
    } else {
      question.prompt = object.string("prompt");
    }
    question.answer = object.string("answer");
    question.tokens = object.integer("tokens", 0);
    questions.push_back(std::move(question));
  }
  if (questions.empty()) throw std::runtime_error(path + ": give a file with a question on each line");
  return questions;
}

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

// The upper end of the range of context lengths that a question is counted in.
std::int64_t length_class(std::int64_t tokens) {
  constexpr std::int64_t kEnds[] = {64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768};
  for (std::int64_t end : kEnds) {
    if (tokens <= end) return end;
  }
  return tokens;
}

template <class Key>
nlohmann::json to_json(const std::map<Key, Score>& scores, const char* name) {
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& [key, score] : scores) {
    rows.push_back({{name, key}, {"exact", score.exact}, {"questions", score.total}, {"accuracy", score.share()}});
  }
  return rows;
}

void print_row(const std::string& name, const Score& score) {
  print("{:<24} {:>9} {:>9} {:>8.1f} %\n", name, score.total, score.exact, 100 * score.share());
}

class Stopwatch {
 public:
  double lap() {
    const Clock::time_point before = std::exchange(begin_, Clock::now());
    return std::chrono::duration<double>(begin_ - before).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point begin_ = Clock::now();
};

// A question that is being answered.
struct Asked {
  std::vector<std::int32_t> prompt;
  std::int64_t room = 0;  // most tokens of the answer; 0: the prompt does not fit into the context
  std::vector<std::int32_t> answer;
};

// The likeliest answers of all questions, in one batch; `sequences` has one for each.
void answer(Model& model, std::vector<Sequence>& sequences, std::vector<Asked>& asked, Generated& time) {
  std::vector<SequenceInput> prompts;
  std::vector<std::size_t> open;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (asked[i].room == 0) continue;
    sequences[i].clear();
    prompts.push_back({&sequences[i], asked[i].prompt});
    open.push_back(i);
    time.prompt_tokens += static_cast<std::int64_t>(asked[i].prompt.size());
  }
  Stopwatch watch;
  model.prefill(prompts);
  time.prefill_seconds += watch.lap();
  while (!open.empty()) {
    std::vector<std::size_t> still;
    std::vector<Sequence*> who;
    std::vector<std::int32_t> tokens;
    for (const std::size_t i : open) {
      const std::int32_t token = model.sample(sequences[i], {});
      if (model.is_end_token(token)) continue;
      asked[i].answer.push_back(token);
      if (static_cast<std::int64_t>(asked[i].answer.size()) == asked[i].room) continue;
      still.push_back(i);
      who.push_back(&sequences[i]);
      tokens.push_back(token);
    }
    model.step(who, tokens);
    time.steps += static_cast<std::int64_t>(tokens.size());
    open = std::move(still);
  }
  time.decode_seconds += watch.lap();
}

void leave_out_conversations(std::vector<Question>& questions) {
  const std::size_t conversations =
      std::erase_if(questions, [](const Question& question) { return !question.messages.empty(); });
  if (conversations > 0) note("{} conversations are left out: the model has no chat template\n", conversations);
  if (questions.empty()) throw std::runtime_error("no question is left to ask: name test sets with --set");
}

int evaluate(const Options& options) {
  std::vector<Question> questions;
  for (const std::string& path : find_sets(options.sets)) {
    std::vector<Question> more = read_set(path, options.limit);
    std::move(more.begin(), more.end(), std::back_inserter(questions));
  }
  Model model = load_model(options.load, options.batch);
  require_tokenizer(model);
  if (!model.info().has_chat_template) leave_out_conversations(questions);
  std::vector<Sequence> sequences;
  for (int i = 0; i < options.batch; ++i) sequences.push_back(model.start());
  std::map<std::string, Score> by_set;
  std::map<std::int64_t, Score> by_length;
  Score all;
  Generated time;
  std::size_t too_long = 0;
  WorkBar bar("asking");
  for (std::size_t first = 0; first < questions.size(); first += sequences.size()) {
    const auto batch = std::span(questions).subspan(first, std::min(sequences.size(), questions.size() - first));
    std::vector<Asked> asked;
    for (const Question& question : batch) {
      Asked one;
      one.prompt = question.messages.empty() ? model.tokenize(question.prompt)
                                             : model.chat_prompt(question.messages, {.think = false}).tokens;
      // A few tokens more than the answer needs, so that an answer that continues is counted as wrong.
      one.room = static_cast<std::int64_t>(model.tokenize(" " + question.answer).size()) + 8;
      if (static_cast<std::int64_t>(one.prompt.size()) + one.room > model.context()) {
        one.room = 0;
        ++too_long;
      }
      asked.push_back(std::move(one));
    }
    answer(model, sequences, asked, time);
    for (std::size_t i = 0; i < batch.size(); ++i) {
      const Question& question = batch[i];
      const std::string text = trimmed(model.detokenize(asked[i].answer));
      const bool right = text == trimmed(question.answer);
      if (options.show && !right) {
        bar.clear();
        note("{}: expected '{}', got '{}'\n", question.set, question.answer, text);
      }
      by_set[question.set].add(right);
      const auto length = static_cast<std::int64_t>(asked[i].prompt.size());
      by_length[length_class(question.tokens > 0 ? question.tokens : length)].add(right);
      all.add(right);
    }
    bar.update(static_cast<double>(first + batch.size()) / static_cast<double>(questions.size()));
  }
  bar.clear();
  if (options.json) {
    const nlohmann::json result = {{"sets", to_json(by_set, "set")},
                                   {"lengths", to_json(by_length, "tokens_at_most")},
                                   {"exact", all.exact},
                                   {"questions", all.total},
                                   {"accuracy", all.share()},
                                   {"too_long", too_long}};
    print("{}\n", result.dump(1, ' ', false, nlohmann::json::error_handler_t::replace));
  } else {
    print("{:<24} {:>9} {:>9} {:>10}\n", "set", "questions", "exact", "accuracy");
    for (const auto& [set, score] : by_set) print_row(set, score);
    print("\n{:<24} {:>9} {:>9} {:>10}\n", "tokens", "questions", "exact", "accuracy");
    for (const auto& [tokens, score] : by_length) print_row(fmt::format("up to {}", tokens), score);
    print_row("all", all);
  }
  flush_output();
  if (too_long > 0) {
    note("{} questions are longer than the context of {} and count as wrong: see --context\n", too_long,
         model.context());
  }
  if (!quiet()) note("{}; {} threads\n", describe_speed(time), model.threads());
  return 0;
}

}  // namespace

void add_eval(CLI::App& app, int& exit_code) {
  CLI::App* command = app.add_subcommand("eval", "How many questions a model answers exactly");
  auto options = std::make_shared<Options>();
  add_load_options(*command, options->load);
  command
      ->add_option("--set", options->sets,
                   "Files, or folders of files, with {\"prompt\", \"answer\", \"tokens\"} on each line, or "
                   "\"messages\", a list of "
                   "{\"role\", \"content\"}, in place of \"prompt\"")
      ->capture_default_str();
  command->add_option("--limit", options->limit, "Only this many questions of each set, 0 for all")
      ->check(whole_number(0, kMostCount))
      ->capture_default_str();
  command
      ->add_option("--batch", options->batch, "Questions that are answered together; the answers do not depend on it")
      ->check(whole_number(1, 1024))
      ->capture_default_str();
  command->add_flag("--show", options->show, "Show the answers that are wrong");
  command->add_flag("--json", options->json, "Print as JSON");
  command->callback([options, &exit_code] { exit_code = evaluate(*options); });
}

}  // namespace thalweg::app
