// bench --op conversation: how many tokens of conversations are computed, with the prefix cache, with answers in it,
// and without; and the first token of a long prompt that is known but for its end.

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "model_options.h"
#include "output_file.h"
#include "progress.h"
#include "streams.h"
#include "thalweg/engine.h"

namespace thalweg::app {
namespace {

using Text = std::vector<std::int32_t>;

constexpr std::int64_t kAllowance = 64;  // tokens of a turn that may be computed beside the new ones
constexpr std::int64_t kAnswer = 40;     // tokens, at most

struct Mode {
  const char* name;
  std::uint64_t bytes;
  bool answers;
};
constexpr std::uint64_t kBudget = std::uint64_t{4} << 30;
constexpr Mode kModes[] = {{"none", 0, false}, {"prompts", kBudget, false}, {"answers", kBudget, true}};

struct Row {
  std::string name;
  std::string cache;
  int turns = 0;
  std::int64_t asked = 0;
  std::int64_t cached = 0;
  std::int64_t bound = 0;  // new tokens, and 64 for each turn
  int over = 0;            // turns that computed more
  double seconds = 0;      // until first tokens
  double bookkeeping = 0;  // over the time in the model

  std::int64_t computed() const { return asked - cached; }
};

std::string sentences(std::mt19937& random, int count) {
  constexpr std::string_view kWho[] = {"Anna", "Tom", "Mary", "John", "Sandra", "Daniel"};
  constexpr std::string_view kWhat[] = {"ball", "lamp", "apple", "football", "book", "cup"};
  constexpr std::string_view kWhere[] = {"kitchen", "attic", "garden", "office", "hallway", "cellar"};
  std::string text;
  for (int i = 0; i < count; ++i) {
    text += fmt::format("{} put the {} in the {}. ", kWho[random() % 6], kWhat[random() % 6], kWhere[random() % 6]);
  }
  return text + fmt::format("Where is the {}?", kWhat[random() % 6]);
}

// Requests of one engine, and what they were about.
class Talks {
 public:
  Talks(Engine& engine, const Mode& mode) : engine_(engine), mode_(mode) {}

  const Model& model() const { return engine_.model(); }
  bool chats() const { return model().info().has_chat_template && model().info().has_tokenizer; }

  void begin_row(const std::string& name) {
    row_ = {};
    row_.name = name;
    row_.cache = mode_.name;
    before_ = engine_.stats();
  }
  Row end_row() const {
    const EngineStats stats = engine_.stats();
    Row row = row_;
    row.bookkeeping = (stats.bookkeeping_seconds - before_.bookkeeping_seconds) /
                      std::max(1e-9, stats.step_seconds - before_.step_seconds);
    return row;
  }

  Output ask(const Text& prompt, std::vector<std::int64_t> boundaries, std::int64_t tokens, bool ignore_end) {
    Request request;
    request.prompt = prompt;
    request.boundaries = std::move(boundaries);
    request.max_tokens = tokens;
    request.ignore_end = ignore_end;
    Output all;
    TokenStream stream = engine_.stream(std::move(request));
    for (Output output; stream.next(output);) {
      if (output.finish == FinishReason::kError) throw std::runtime_error(output.error);
      all.text += output.text;
      all.tokens.insert(all.tokens.end(), output.tokens.begin(), output.tokens.end());
      all.usage = output.usage;
    }
    const std::int64_t computed = all.usage.prompt_tokens - all.usage.cached_tokens;
    const std::int64_t bound = new_tokens(prompt) + kAllowance;
    ++row_.turns;
    row_.asked += all.usage.prompt_tokens;
    row_.cached += all.usage.cached_tokens;
    row_.bound += bound;
    row_.over += computed > bound ? 1 : 0;
    row_.seconds += all.usage.queue_seconds + all.usage.prompt_seconds;
    known_.push_back(prompt);
    // The last token of an answer that its limit ended has not been run.
    if (mode_.answers) known_.back().insert(known_.back().end(), all.tokens.begin(), all.tokens.end());
    return all;
  }

 private:
  // Those that no prompt began with before, nor, where answers are kept, a prompt and its answer.
  std::int64_t new_tokens(const Text& prompt) const {
    std::ptrdiff_t longest = 0;
    for (const Text& text : known_) {
      const auto parted = std::mismatch(prompt.begin(), prompt.end(), text.begin(), text.end()).first;
      longest = std::max(longest, parted - prompt.begin());
    }
    return static_cast<std::int64_t>(prompt.size()) - longest;
  }

  Engine& engine_;
  const Mode& mode_;
  Row row_;
  EngineStats before_;
  std::vector<Text> known_;
};

// One conversation: messages in the model's chat format, or tokens behind one another for a model without.
class Conversation {
 public:
  Conversation(Talks& talks, std::uint32_t seed, int beginning) : talks_(talks), random_(seed) {
    if (talks_.chats()) {
      messages_.push_back({"system", "You know this: " + sentences(random_, beginning)});
    } else {
      text_ = some_tokens(8 * static_cast<std::size_t>(beginning));
      ends_.push_back(static_cast<std::int64_t>(text_.size()));
    }
  }

  void turn() {
    if (talks_.chats()) {
      messages_.push_back({"user", sentences(random_, 1 + static_cast<int>(random_() % 5))});
      ask_messages();
    } else {
      add(some_tokens(15 + random_() % 50));
      ask_text();
    }
  }

  // The last question in other words.
  void edit() {
    if (talks_.chats()) {
      messages_.resize(messages_.size() - 2);
    } else {
      ends_.resize(ends_.size() - 2);
      text_.resize(static_cast<std::size_t>(ends_.back()));
    }
    turn();
  }

 private:
  Text some_tokens(std::size_t count) {
    Text tokens(count);
    for (std::int32_t& token : tokens) {
      token = static_cast<std::int32_t>(random_() % static_cast<std::uint64_t>(talks_.model().info().vocabulary));
    }
    return tokens;
  }

  void add(const Text& tokens) {
    text_.insert(text_.end(), tokens.begin(), tokens.end());
    ends_.push_back(static_cast<std::int64_t>(text_.size()));
  }

  void ask_messages() {
    ChatOptions options;
    if (talks_.model().can_answer(false)) options.think = false;
    const ChatPrompt prompt = talks_.model().chat_prompt(messages_, options);
    const Output output = talks_.ask(prompt.tokens, prompt.boundaries, kAnswer, false);
    AnswerParser parser = talks_.model().answer_parser(prompt.thinking, options);
    ChatMessage answer{"assistant", ""};
    for (const AnswerParser::Delta& delta : {parser.push(output.text), parser.finish()}) {
      answer.content += delta.content;
      answer.reasoning += delta.reasoning;
    }
    messages_.push_back(answer);
  }

  void ask_text() { add(talks_.ask(text_, ends_, kAnswer, true).tokens); }

  Talks& talks_;
  std::mt19937 random_;
  std::vector<ChatMessage> messages_;
  Text text_;
  std::vector<std::int64_t> ends_;
};

class ConversationBench {
 public:
  ConversationBench(const BenchOptions& options, const std::string& path)
      : options_(options), path_(path), long_(options.prefills.empty() ? 30'000 : options.prefills.front()) {
    if (options.prefills.size() > 1 || long_ < 200) {
      throw std::runtime_error("--prefill: --op conversation takes one length of at least 200 tokens");
    }
  }

  std::vector<Row> run() {
    print("  {:<28} {:<8} {:>5} {:>8} {:>8} {:>9} {:>8} {:>5} {:>12} {:>11}\n", "", "cache", "turns", "asked", "found",
          "computed", "bound", "over", "first tok. s", "bookkeeping");
    Progress progress(std::size(kModes));
    for (const Mode& mode : kModes) {
      progress.step(fmt::format("cache: {}", mode.name));
      progress.clear();
      run_mode(mode);
    }
    progress.clear();
    return rows_;
  }

 private:
  static constexpr int kTurns = 20;

  void run_mode(const Mode& mode) {
    LoadOptions load;
    load.path = path_;
    load.threads = options_.threads;
    load.device = options_.device;
    load.context = long_ + 512;
    EngineOptions engine_options;
    engine_options.cache_bytes = mode.bytes;
    if (mode.bytes == 0) engine_options.cache_device_bytes = 0;
    engine_options.cache_answers = mode.answers;
    Engine engine(load_model(load), engine_options);
    if (engine.model().context() < 4096) throw std::runtime_error("a context of 4096 tokens or more is needed");
    Talks talks(engine, mode);
    twenty_turns(talks, mode.bytes > 0);
    if (mode.bytes == 0) return;
    shared_beginning(talks);
    many_conversations(talks);
    long_hit(talks, engine);
    const EngineStats stats = engine.stats();
    print("  {:<28} {:<8} {} checkpoints, {} dropped, {} of {}{}\n", "the cache in the end", mode.name,
          stats.cache_checkpoints, stats.cache_evictions, format_bytes(stats.cache_bytes), format_bytes(mode.bytes),
          stats.cache_device_budget == 0
              ? ""
              : fmt::format(", {} of {} on the device", format_bytes(stats.cache_device_bytes),
                            format_bytes(stats.cache_device_budget)));
    flush_output();
  }

  void add(const Row& row) {
    print("  {:<28} {:<8} {:>5} {:>8} {:>8} {:>9} {:>8} {:>5} {:>12.3f} {:>10.2f}%\n", row.name, row.cache, row.turns,
          row.asked, row.cached, row.computed(), row.cache == kModes[0].name ? "" : std::to_string(row.bound),
          row.cache == kModes[0].name ? "" : std::to_string(row.over), row.seconds, 100 * row.bookkeeping);
    flush_output();
    rows_.push_back(row);
  }

  void twenty_turns(Talks& talks, bool edits) {
    talks.begin_row(fmt::format("{} turns", kTurns));
    Conversation conversation(talks, 1, 8);
    for (int i = 0; i < kTurns; ++i) conversation.turn();
    add(talks.end_row());
    if (!edits) return;
    talks.begin_row("its last message edited");
    for (int i = 0; i < 5; ++i) conversation.edit();
    add(talks.end_row());
  }

  // Two conversations behind one text, of 4096 tokens or so if the context has room for it.
  void shared_beginning(Talks& talks) {
    const auto shared = static_cast<std::size_t>(std::min<std::int64_t>(4096, long_ - 100));
    talks.begin_row(fmt::format("two behind {} tokens", shared));
    Text text(shared);
    for (std::size_t i = 0; i < shared; ++i) text[i] = token_of(talks, i, 2);
    for (std::size_t kind = 3; kind < 5; ++kind) {
      Text prompt = text;
      for (std::size_t i = 0; i < 100; ++i) prompt.push_back(token_of(talks, i, kind));
      talks.ask(prompt, {static_cast<std::int64_t>(shared)}, kAnswer, true);
    }
    add(talks.end_row());
  }

  void many_conversations(Talks& talks) {
    constexpr std::uint32_t kConversations = 50;
    talks.begin_row("50 that take turns");
    std::vector<Conversation> conversations;
    conversations.reserve(kConversations);
    for (std::uint32_t i = 0; i < kConversations; ++i) conversations.emplace_back(talks, 100 + i, 6);
    for (int turn = 0; turn < 3; ++turn) {
      for (Conversation& conversation : conversations) conversation.turn();
    }
    add(talks.end_row());
  }

  void long_hit(Talks& talks, const Engine& engine) {
    Text text(static_cast<std::size_t>(std::min(long_, engine.model().context() - 110)));
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = token_of(talks, i, 7);
    talks.begin_row(fmt::format("{} tokens, cold", text.size()));
    talks.ask(text, {}, 1, true);
    const Row cold = talks.end_row();
    add(cold);
    talks.begin_row("the same and 100 more");
    for (std::size_t i = 0; i < 100; ++i) text.push_back(token_of(talks, i, 8));
    talks.ask(text, {}, 1, true);
    const Row warm = talks.end_row();
    add(warm);
    print("  {:<28} {:<8} {:.4f} of the cold one's time; at most 0.05 is wanted\n", "first token of it", cold.cache,
          warm.seconds / cold.seconds);
  }

  // Differs between kinds from the first on.
  static std::int32_t token_of(const Talks& talks, std::size_t i, std::size_t kind) {
    return static_cast<std::int32_t>((i * 7919 + kind * 104'729 + 13) %
                                     static_cast<std::size_t>(talks.model().info().vocabulary));
  }

  const BenchOptions& options_;
  const std::string& path_;
  std::int64_t long_;
  std::vector<Row> rows_;
};

}  // namespace

int bench_conversation(const BenchOptions& options) {
  if (options.models.empty()) throw std::runtime_error("name the models to run with -m");
  nlohmann::json results = nlohmann::json::array();
  std::string csv = "model,case,cache,turns,asked,found,computed,bound,over,first_token_seconds,bookkeeping\n";
  for (const std::string& path : options.models) {
    const std::string name = std::filesystem::path(path).filename().string();
    print("{}: tokens of prompts; the bound is the new ones and {} for each turn\n", name, kAllowance);
    nlohmann::json rows = nlohmann::json::array();
    for (const Row& row : ConversationBench(options, path).run()) {
      rows.push_back({{"case", row.name},
                      {"cache", row.cache},
                      {"turns", row.turns},
                      {"asked", row.asked},
                      {"found", row.cached},
                      {"computed", row.computed()},
                      {"bound", row.bound},
                      {"over", row.over},
                      {"first_token_seconds", row.seconds},
                      {"bookkeeping", row.bookkeeping}});
      csv += fmt::format("{},\"{}\",{},{},{},{},{},{},{},{:.4f},{:.5f}\n", name, row.name, row.cache, row.turns,
                         row.asked, row.cached, row.computed(), row.bound, row.over, row.seconds, row.bookkeeping);
    }
    results.push_back({{"model", name}, {"results", rows}});
  }
  if (!options.json.empty()) write_text(options.json, results.dump(1) + "\n");
  if (!options.csv.empty()) write_text(options.csv, csv);
  return 0;
}

}  // namespace thalweg::app
