// Cases of sample_tokens and logprobs. A drawn token has no bound: seeds and cuts are drawn anew until rounding by the
// contract cannot change the token, then it must be the oracle's.

#include <cmath>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "cases/nn.h"
#include "reference/sampling.h"

namespace thalweg::cases {
namespace {

enum class Logits {
  kNormal,
  kFlat,    // hundredths apart
  kEqual,   // all equal
  kTies,    // few distinct values, zeros of both signs among them
  kPeaked,  // one far above the others
  kHoles,   // -infinity among them
};

std::string_view suffix(Logits logits) {
  constexpr std::string_view kNames[] = {"", "_flat", "_equal", "_ties", "_peaked", "_holes"};
  return kNames[static_cast<int>(logits)];
}

ConstTensor make_logits(Memory& memory, std::int64_t rows, std::int64_t vocabulary, Logits kind, Random& random) {
  std::int64_t i = 0;
  return memory.input(DType::kF32, {rows, vocabulary}, [&]() -> double {
    const std::int64_t column = i++ % vocabulary;
    switch (kind) {
      case Logits::kNormal:
        return 3.0 * random.normal();
      case Logits::kFlat:
        return 0.01 * random.normal();
      case Logits::kEqual:
        return -1.5;
      case Logits::kTies: {
        const std::int64_t value = random.below(4) - 2;
        return value == 0 && random.below(2) == 0 ? -0.0 : static_cast<double>(value);
      }
      case Logits::kPeaked:
        return column == vocabulary / 3 ? 40.0 : 2.0 * random.normal();
      case Logits::kHoles:
        break;
    }
    const bool hole = column != 0 && random.below(3) == 0;
    return hole ? -std::numeric_limits<double>::infinity() : 2.0 * random.normal();
  });
}

// Row n takes element n % size of each list; an empty list: no tensor.
struct Draw {
  std::int64_t rows = 1;
  std::int64_t vocabulary = 1000;
  std::vector<double> temperature = {};
  std::vector<double> top_k = {};
  std::vector<double> top_p = {};
  std::vector<double> min_p = {};
  std::vector<double> penalty = {};
  std::vector<double> last = {};
  std::vector<double> allowed = {};  // share of the tokens, at least one
  std::vector<std::int64_t> slots = {};
  Logits logits = Logits::kNormal;
  std::int64_t history = 0;  // C
  bool strided = false;

  std::string name() const {
    std::string text = "N" + std::to_string(rows) + "_V" + std::to_string(vocabulary) + std::string(suffix(logits));
    const auto add = [&text](std::string_view what, const std::vector<double>& values) {
      if (!values.empty()) text += "_" + std::string(what);
      for (std::size_t i = 0; i < values.size(); ++i) {
        std::ostringstream number;
        number << values[i];
        text += (i == 0 ? "" : ",") + number.str();
      }
    };
    add("t", temperature);
    add("topk", top_k);
    add("topp", top_p);
    add("minp", min_p);
    add("penalty", penalty);
    add("last", last);
    add("allowed", allowed);
    if (history > 0) text += "_C" + std::to_string(history);
    if (!slots.empty()) text += "_slots" + list_name(slots);
    return text + (strided ? "_strided" : "");
  }
};

Tensor make_setting(Memory& memory, DType dtype, std::int64_t rows, const std::vector<double>& values) {
  std::size_t n = 0;
  return values.empty() ? Tensor() : memory.input(dtype, {rows}, [&] { return values[n++ % values.size()]; });
}

double any_word(Random& random) { return static_cast<double>(static_cast<std::int32_t>(random.bits())); }

// Half of the tokens among the first eight, so that many occur twice; some are in no vocabulary.
void make_history(SampleTokensArgs& args, Memory& memory, const Draw& draw, Random& random) {
  const std::int64_t places = draw.slots.empty() ? draw.rows : draw.rows + 2;
  args.history = memory.input(DType::kI32, {places, draw.history}, [&] {
    if (random.below(20) == 0) return random.below(2) == 0 ? -1.0 : static_cast<double>(draw.vocabulary);
    const std::int64_t among = random.below(2) == 0 ? std::min<std::int64_t>(8, draw.vocabulary) : draw.vocabulary;
    return static_cast<double>(random.below(among));
  });
}

// Bits beyond the vocabulary are set too, which no kernel may read.
ConstTensor make_allowed(Memory& memory, const Draw& draw, Random& random) {
  constexpr std::int64_t kBits = 32;
  const std::int64_t words = (draw.vocabulary + kBits - 1) / kBits;
  std::int64_t i = 0;
  std::int64_t certain = 0;
  return memory.input(DType::kI32, {draw.rows, words}, [&] {
    const std::int64_t first = i % words * kBits;
    // Column 0 is no hole.
    if (first == 0) certain = draw.logits == Logits::kHoles ? 0 : random.below(draw.vocabulary);
    const double share = draw.allowed[static_cast<std::size_t>(i++ / words) % draw.allowed.size()];
    std::uint32_t word = 0;
    for (std::int64_t bit = 0; bit < kBits; ++bit) {
      const std::int64_t token = first + bit;
      const bool is_set = token == certain || token >= draw.vocabulary || random.uniform() < share;
      if (is_set) word |= 1U << bit;
    }
    return static_cast<double>(static_cast<std::int32_t>(word));
  });
}

// Draws seeds, and lowers cuts a little, until no rounding can change a row's token.
void keep_margins(const SampleTokensArgs& args, Memory& memory, Tensor seed, const Tensor& top_p, const Tensor& min_p,
                  Random& random) {
  constexpr double kMargin = 2.0;
  for (std::int64_t n = 0; n < args.logits.dim(0); ++n) {
    for (int attempt = 0; reference::sample_row(args, n).margin < kMargin; ++attempt) {
      if (attempt == 100) throw std::logic_error("no seed gives the token a margin");
      for (int word = 0; word < 2; ++word) write_element(DType::kI32, seed.row(n), word, any_word(random));
      for (const Tensor& cut : {top_p, min_p}) {
        if (!cut.defined() || attempt == 0) continue;
        const double value = read_element(DType::kF32, cut.data, n);
        if (value < 1.0) write_element(DType::kF32, cut.data, n, value * (1.0 - 0.01 * random.uniform()));
      }
    }
  }
  for (const Tensor& changed : {seed, top_p, min_p}) {
    if (changed.defined()) memory.refresh(changed);
  }
}

Case sample_case(const Draw& draw) {
  return make_case<SampleTokensArgs>(draw.name(), [draw](OperationProblem<SampleTokensArgs>& problem, Random& random) {
    Memory& memory = problem.memory;
    memory.set_layout(draw.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
    SampleTokensArgs& args = problem.args;
    args.logits = make_logits(memory, draw.rows, draw.vocabulary, draw.logits, random);
    if (draw.history > 0) make_history(args, memory, draw, random);
    const std::int64_t longest = draw.history > 0 ? draw.history : 100000;
    std::int64_t row = 0;
    // The first history is full and the second empty.
    args.lengths = memory.input(DType::kI32, {draw.rows}, [&] {
      const std::int64_t n = row++;
      return static_cast<double>(n == 0 ? longest : n == 1 ? 0 : random.below(longest + 1));
    });
    if (!draw.slots.empty()) args.slots = integers(memory, draw.slots);
    args.temperature = make_setting(memory, DType::kF32, draw.rows, draw.temperature);
    args.top_k = make_setting(memory, DType::kI32, draw.rows, draw.top_k);
    const Tensor top_p = make_setting(memory, DType::kF32, draw.rows, draw.top_p);
    const Tensor min_p = make_setting(memory, DType::kF32, draw.rows, draw.min_p);
    args.top_p = top_p;
    args.min_p = min_p;
    args.repeat_penalty = make_setting(memory, DType::kF32, draw.rows, draw.penalty);
    args.repeat_last = make_setting(memory, DType::kI32, draw.rows, draw.last);
    if (!draw.allowed.empty()) args.allowed = make_allowed(memory, draw, random);
    if (args.temperature.defined()) {
      const Tensor seed = memory.input(DType::kI32, {draw.rows, 2}, [&] { return any_word(random); });
      args.seed = seed;
      keep_margins(args, memory, seed, top_p, min_p, random);
    }
    args.tokens = memory.output(DType::kI32, {draw.rows});
    args.fault = memory.in_out(DType::kI32, {1}, [] { return 0.0; });
    problem.find_expected = [](const SampleTokensArgs& a) {
      reference::Array tokens({a.logits.dim(0)});
      for (std::int64_t n = 0; n < a.logits.dim(0); ++n) tokens(n) = reference::sample_row(a, n).token;
      return std::vector{expect_equal("tokens", a.tokens, tokens),
                         expect_equal("fault", a.fault, reference::Array({1}))};
    };
    const auto elements = static_cast<double>(draw.rows * draw.vocabulary);
    problem.cost = {4.0 * elements, draw.temperature.empty() ? 0.0 : 10.0 * elements};
  });
}

struct Lookup {
  std::int64_t rows = 3;
  std::int64_t vocabulary = 1000;
  std::int64_t count = 5;  // K; 0: none
  Logits logits = Logits::kNormal;
  bool tokens = true;
  bool absent = false;  // every third row
  bool strided = false;

  std::string name() const {
    std::string text = "N" + std::to_string(rows) + "_V" + std::to_string(vocabulary) + "_K" + std::to_string(count) +
                       std::string(suffix(logits));
    if (!tokens) text += "_notokens";
    if (absent) text += "_absent";
    return text + (strided ? "_strided" : "");
  }
};

Case logprobs_case(const Lookup& lookup) {
  return make_case<LogprobsArgs>(lookup.name(), [lookup](OperationProblem<LogprobsArgs>& problem, Random& random) {
    Memory& memory = problem.memory;
    memory.set_layout(lookup.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
    LogprobsArgs& args = problem.args;
    args.logits = make_logits(memory, lookup.rows, lookup.vocabulary, lookup.logits, random);
    std::int64_t n = 0;
    if (lookup.tokens) {
      // Column 0 is no hole.
      args.tokens = memory.input(DType::kI32, {lookup.rows}, [&] {
        if (lookup.absent && n++ % 3 == 1) return -1.0;
        return lookup.logits == Logits::kHoles ? 0.0 : static_cast<double>(random.below(lookup.vocabulary));
      });
      args.logprob = memory.output(DType::kF32, {lookup.rows});
    }
    if (lookup.count > 0) {
      args.top_tokens = memory.output(DType::kI32, {lookup.rows, lookup.count});
      args.top_logprobs = memory.output(DType::kF32, {lookup.rows, lookup.count});
    }
    problem.find_expected = [](const LogprobsArgs& a) {
      const reference::Logprobs exact = reference::logprobs(a, reference::Precision::kExact);
      const reference::Logprobs rounded = reference::logprobs(a, reference::Precision::kRounded);
      // Errors of an f32 exponential: sums are as good as exact, whatever their length.
      const Bound bound = f32_bound(1.0);
      std::vector<Expected> expected;
      if (a.logprob.defined()) expected.push_back(expect("logprob", a.logprob, exact.logprob, rounded.logprob, bound));
      if (a.top_tokens.defined()) {
        expected.push_back(expect_equal("top_tokens", a.top_tokens, exact.top_tokens));
        expected.push_back(expect("top_logprobs", a.top_logprobs, exact.top_logprobs, rounded.top_logprobs, bound));
      }
      return expected;
    };
    const auto elements = static_cast<double>(lookup.rows * lookup.vocabulary);
    problem.cost = {4.0 * elements, 10.0 * elements};
  });
}

void add_greedy_cases(std::vector<Case>& cases) {
  const auto add = [&cases](const Draw& draw) { cases.push_back(sample_case(draw)); };
  add({.rows = 0});
  for (const std::int64_t vocabulary : {1, 7, 2048, 2049, 151936}) add({.vocabulary = vocabulary});
  add({.vocabulary = 248320});
  cases.back().bench = true;
  for (const Logits logits : {Logits::kEqual, Logits::kTies, Logits::kHoles}) add({.rows = 5, .logits = logits});
  add({.rows = 64, .vocabulary = 4097, .logits = Logits::kTies, .strided = true});
  add({.rows = 4, .slots = {2, -1, 0, 9}});
  add({.rows = 6, .penalty = {1.0, 1.5, 0.7}, .last = {64, -1, 3, 0}, .history = 90});
  add({.rows = 9, .vocabulary = 7, .penalty = {1e3}, .last = {-1, 1}, .history = 5});
}

void add_allowed_cases(std::vector<Case>& cases) {
  const auto add = [&cases](const Draw& draw) { cases.push_back(sample_case(draw)); };
  const std::vector<double> shares = {0.5, 0.0, 1.0, 0.01};
  for (const std::int64_t vocabulary : {1, 31, 33, 2049, 151936}) {
    add({.rows = 4, .vocabulary = vocabulary, .allowed = shares});
    add({.rows = 4, .vocabulary = vocabulary, .temperature = {1.0}, .allowed = shares});
  }
  add({.rows = 9, .temperature = {0.7, 0.0}, .top_k = {0, 20, 300}, .top_p = {0.95, 0.3, 1.0}, .allowed = shares});
  add({.rows = 6, .allowed = {0.3}, .logits = Logits::kHoles});
  add({.rows = 6, .temperature = {1.2}, .top_k = {5, 0}, .min_p = {0.1}, .allowed = {0.3}, .logits = Logits::kTies});
  const Draw penalized{.rows = 8,
                       .vocabulary = 4099,
                       .temperature = {0.0, 0.8},
                       .top_p = {0.9},
                       .penalty = {1.0, 1.4, 0.8},
                       .last = {64, -1},
                       .allowed = shares,
                       .history = 120,
                       .strided = true};
  add(penalized);
  Draw greedy = penalized;
  greedy.temperature = {};
  greedy.top_p = {};
  greedy.slots = {7, -1, 0, 3, -1, 3, 1, 2};
  add(greedy);
}

void add_sampled_cases(std::vector<Case>& cases) {
  const auto add = [&cases](const Draw& draw) { cases.push_back(sample_case(draw)); };
  const std::vector<double> one = {1.0};
  for (const std::int64_t vocabulary : {1, 2, 7, 1000, 2047, 4097, 151936}) {
    add({.rows = 3, .vocabulary = vocabulary, .temperature = one});
  }
  add({.rows = 8, .temperature = {1e-6, 0.01, 0.3, 1.7, 100.0, 1e30}});
  add({.rows = 8, .temperature = one, .top_k = {1, 2, 20, 999, 1000, 1001, 2147483647}});
  add({.rows = 8, .temperature = one, .top_p = {1e-9, 0.1, 0.5, 0.9, 0.999, 0.999999, 1.0}});
  add({.rows = 8, .temperature = one, .min_p = {1e-20, 1e-3, 0.05, 0.5, 0.99, 1.0}});
  for (const Logits logits : {Logits::kFlat, Logits::kEqual, Logits::kTies, Logits::kPeaked, Logits::kHoles}) {
    add({.rows = 9, .temperature = {0.7, 1.0, 0.02}, .top_k = {0, 20, 300}, .top_p = {0.95, 0.3}, .logits = logits});
    add({.rows = 4, .vocabulary = 5000, .temperature = {1.3}, .min_p = {0.1, 1.0}, .logits = logits});
  }
  add({.rows = 2,
       .vocabulary = 248320,
       .temperature = one,
       .top_k = {0, 100000},
       .top_p = {0.9},
       .logits = Logits::kEqual});
  add({.rows = 2,
       .vocabulary = 248320,
       .temperature = {0.8},
       .top_k = {20},
       .top_p = {0.95},
       .min_p = {0.01},
       .penalty = {1.1},
       .last = {64},
       .history = 200});
  add({.rows = 2, .vocabulary = 248320, .temperature = {1.5}, .top_p = {0.5}, .logits = Logits::kFlat});
  // Blocks of several segments on a GPU.
  add({.rows = 40, .vocabulary = 30000, .temperature = {1.0, 0.0, 0.6}, .top_k = {40, 0}, .top_p = {0.9, 1.0}});
  // Greedy rows, rows that are drawn and absent ones in one call, all settings at once.
  const Draw all{.rows = 64,
                 .temperature = {0.0, 0.7, 1.0},
                 .top_k = {0, 20, 5, 1},
                 .top_p = {0.8, 1.0, 0.95},
                 .min_p = {0.0, 0.05},
                 .penalty = {1.0, 1.3, 0.9},
                 .last = {64, -1, 0, 3},
                 .history = 150};
  add(all);
  Draw strided = all;
  strided.strided = true;
  strided.vocabulary = 4099;
  add(strided);
  Draw absent = all;
  absent.rows = 6;
  absent.slots = {7, -1, 0, 3, -1, 3};
  add(absent);
  add({.rows = 3, .temperature = one, .penalty = {1.2}, .last = {-1}, .history = 5000});
}

struct Advance {
  std::int64_t rows = 1;
  std::int64_t ends = 0;
  bool history = false;
  std::int64_t capacity = 20;

  std::string name() const {
    return "N" + std::to_string(rows) + "_E" + std::to_string(ends) +
           (history ? "_history" + std::to_string(capacity) : "");
  }
};

Case advance_case(const Advance& advance) {
  return make_case<AdvanceArgs>(advance.name(), [advance](OperationProblem<AdvanceArgs>& problem, Random& random) {
    Memory& memory = problem.memory;
    const auto make = [&](std::int64_t count, auto value) {
      std::vector<std::int64_t> values;
      for (std::int64_t i = 0; i < count; ++i) values.push_back(value(i));
      return integers(memory, values);
    };
    AdvanceArgs& args = problem.args;
    // Few ids, so that some are end tokens; every seventh row has none.
    args.tokens = make(advance.rows, [&](std::int64_t i) { return i % 7 == 6 ? -1 : random.below(8); });
    if (advance.ends > 0) args.end_tokens = make(advance.ends, [&](std::int64_t i) { return 2 + 3 * i; });
    args.ids = memory.also_output(make(advance.rows, [&](std::int64_t) { return random.below(100); }));
    args.positions = memory.also_output(make(advance.rows, [&](std::int64_t) { return random.below(1000); }));
    // Some at the end of their history and beyond it.
    args.lengths =
        memory.also_output(make(advance.rows, [&](std::int64_t) { return random.below(advance.capacity + 3); }));
    args.slots = memory.also_output(make(advance.rows, [&](std::int64_t i) { return i % 5 == 3 ? -1 : i; }));
    if (advance.history) {
      args.history = memory.also_output(memory.input(DType::kI32, {advance.rows, advance.capacity},
                                                     [&] { return static_cast<double>(random.below(100)); }));
    }
    problem.find_expected = [](const AdvanceArgs& a) {
      const reference::Advanced next = reference::advance(a);
      std::vector<Expected> expected = {
          expect_equal("ids", a.ids, next.ids), expect_equal("positions", a.positions, next.positions),
          expect_equal("lengths", a.lengths, next.lengths), expect_equal("slots", a.slots, next.slots)};
      if (a.history.defined()) expected.push_back(expect_equal("history", a.history, next.history));
      return expected;
    };
    problem.cost = {32.0 * static_cast<double>(advance.rows), 0.0};
  });
}

}  // namespace

void add_sampling_cases(std::vector<Case>& cases) {
  add_greedy_cases(cases);
  add_sampled_cases(cases);
  add_allowed_cases(cases);
  cases.push_back(for_bench(sample_case({.rows = 64, .vocabulary = 248320})));
  for (const std::int64_t rows : {1, 64}) {
    cases.push_back(for_bench(sample_case(
        {.rows = rows, .vocabulary = 248320, .temperature = {0.6}, .top_k = {20}, .top_p = {0.95}, .min_p = {0.0}})));
  }
  cases.push_back(for_bench(sample_case({.vocabulary = 248320, .temperature = {1.0}})));

  const auto add = [&cases](const Lookup& lookup) { cases.push_back(logprobs_case(lookup)); };
  add({});
  add({.rows = 0});
  add({.count = 0});
  add({.tokens = false});
  add({.rows = 64, .count = 20, .absent = true, .strided = true});
  add({.vocabulary = 1, .count = 1});
  add({.vocabulary = 7, .count = 7});
  add({.vocabulary = 2049, .count = 64});
  add({.rows = 2, .vocabulary = 3000, .count = 3000});
  add({.rows = 2, .vocabulary = 4096, .count = 300, .logits = Logits::kTies});
  for (const Logits logits : {Logits::kFlat, Logits::kEqual, Logits::kPeaked, Logits::kHoles}) add({.logits = logits});
  add({.rows = 2, .vocabulary = 151936, .count = 20});
  add({.rows = 1, .vocabulary = 248320, .count = 5, .logits = Logits::kFlat});
  add({.rows = 1, .vocabulary = 248320, .count = 5, .logits = Logits::kPeaked});
  for (const std::int64_t rows : {1, 64}) {
    for (const std::int64_t count : {0, 20}) {
      cases.push_back(for_bench(logprobs_case({.rows = rows, .vocabulary = 248320, .count = count})));
    }
  }

  for (const std::int64_t rows : {0, 1, 2, 31, 128, 129}) {
    cases.push_back(advance_case({.rows = rows}));
    cases.push_back(advance_case({.rows = rows, .ends = 2, .history = true}));
  }
  cases.push_back(advance_case({.rows = 40, .ends = 1, .history = true, .capacity = 1}));
  cases.push_back(for_bench(advance_case({.rows = 64, .ends = 2})));
}

}  // namespace thalweg::cases
