// Cases of route_top_k and expert_rows.

#include <algorithm>
#include <cmath>
#include <limits>

#include "cases/experts.h"
#include "reference/moe.h"

namespace thalweg::cases {
namespace {

using reference::Precision;

enum class Logits {
  kNormal,
  kTies,     // few distinct values
  kEqual,    // all equal
  kSpread,   // hundreds apart: most probabilities underflow
  kMissing,  // NaN and -infinity among them
};

struct RouteShape {
  std::int64_t tokens = 9;
  std::int64_t experts = 32;
  std::int64_t slots = 4;
  Logits logits = Logits::kNormal;
  DType dtype = DType::kF32;
  bool renormalize = true;
  bool strided = false;
  RouterScore score = RouterScore::kSoftmax;
  bool bias = false;

  std::string name() const {
    constexpr const char* kNames[] = {"", "_ties", "_equal", "_spread", "_missing"};
    std::string text = "T" + std::to_string(tokens) + "_E" + std::to_string(experts) + "_S" + std::to_string(slots) +
                       "_" + std::string(dtype_name(dtype)) + kNames[static_cast<int>(logits)];
    if (!renormalize) text += "_plain";
    if (strided) text += "_strided";
    if (score == RouterScore::kSigmoid) text += "_sigmoid";
    if (bias) text += "_bias";
    return text;
  }
};

double logit(Logits kind, Random& random) {
  switch (kind) {
    case Logits::kNormal:
      return 2.0 * random.normal();
    case Logits::kTies:
      return static_cast<double>(random.below(3));
    case Logits::kEqual:
      return 0.25;
    case Logits::kSpread:
      return 200.0 * random.normal();
    case Logits::kMissing:
      break;
  }
  const double kind_drawn = random.uniform();
  if (kind_drawn < 0.2) return std::numeric_limits<double>::quiet_NaN();
  if (kind_drawn < 0.3) return -std::numeric_limits<double>::infinity();
  return random.normal();
}

// A row of logits whose choice by score and bias does not depend on rounding: what is compared lies apart.
std::vector<double> clear_row(const RouteShape& shape, const ConstTensor& bias, Random& random) {
  const auto experts = static_cast<std::size_t>(shape.experts);
  std::vector<double> row(experts);
  for (;;) {
    for (double& value : row) value = static_cast<float>(logit(shape.logits, random));
    if (shape.logits == Logits::kEqual) return row;  // equal scores are equal in any precision
    double sum = 0.0;
    for (const double value : row) sum += std::exp(value);
    std::vector<double> compared;
    for (std::size_t e = 0; e < experts; ++e) {
      const double score =
          shape.score == RouterScore::kSigmoid ? 1.0 / (1.0 + std::exp(-row[e])) : std::exp(row[e]) / sum;
      compared.push_back(score + read_element(DType::kF32, bias.data, static_cast<std::int64_t>(e)));
    }
    std::sort(compared.rbegin(), compared.rend());
    bool clear = true;
    for (std::size_t s = 0; s < static_cast<std::size_t>(shape.slots) && s + 1 < experts; ++s) {
      clear &= compared[s] - compared[s + 1] > 1e-5;
    }
    if (clear) return row;
  }
}

Case route_case(const RouteShape& shape) {
  return make_case<RouteTopKArgs>(shape.name(), [shape](OperationProblem<RouteTopKArgs>& problem, Random& random) {
    Memory& memory = problem.memory;
    memory.set_layout(shape.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
    std::vector<double> row;
    if (shape.bias) {
      problem.args.bias = memory.input(DType::kF32, {shape.experts},
                                       [&] { return 0.125 * static_cast<double>(random.below(9)) - 0.5; });
    }
    std::size_t at = 0;
    problem.args.router_logits = memory.input(shape.dtype, {shape.tokens, shape.experts}, [&] {
      if (!shape.bias) return logit(shape.logits, random);
      if (at == row.size()) {
        row = clear_row(shape, problem.args.bias, random);
        at = 0;
      }
      return row[at++];
    });
    problem.args.score = shape.score;
    problem.args.expert_ids = memory.output(DType::kI32, {shape.tokens, shape.slots});
    problem.args.expert_weights = memory.output(DType::kF32, {shape.tokens, shape.slots});
    problem.args.renormalize = shape.renormalize;
    problem.find_expected = [](const RouteTopKArgs& args) {
      const reference::Routing exact = reference::route_top_k(args, Precision::kExact);
      const reference::Routing rounded = reference::route_top_k(args, Precision::kRounded);
      return std::vector{expect_equal("expert_ids", args.expert_ids, exact.ids),
                         expect("expert_weights", args.expert_weights, exact.weights, rounded.weights,
                                f32_bound(static_cast<double>(args.router_logits.dim(1))))};
    };
    problem.cost = {
        static_cast<double>(bytes_of(shape.dtype, shape.tokens * shape.experts) + 8 * shape.tokens * shape.slots),
        4.0 * static_cast<double>(shape.tokens * shape.experts)};
  });
}

struct RowsShape {
  ExpertShape ids;
  bool strided = false;
};

Case rows_case(const RowsShape& shape) {
  const ExpertShape& s = shape.ids;
  std::string name = "T" + std::to_string(s.tokens) + "_S" + std::to_string(s.slots) + "_E" + std::to_string(s.experts);
  if (s.ids == Ids::kCrowded) name += "_crowded";
  if (s.ids == Ids::kOneExpert) name += "_oneexpert";
  if (s.ids == Ids::kElsewhere) name += "_elsewhere";
  if (shape.strided) name += "_strided";
  return make_case<ExpertRowsArgs>(std::move(name), [shape](OperationProblem<ExpertRowsArgs>& problem, Random& random) {
    Memory& memory = problem.memory;
    memory.set_layout(shape.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
    problem.args.expert_ids = make_ids(memory, shape.ids, random);
    problem.args.expert_offsets = memory.output(DType::kI32, {shape.ids.experts + 1});
    problem.args.rows = memory.output(DType::kI32, {shape.ids.tokens * shape.ids.slots});
    problem.find_expected = [](const ExpertRowsArgs& args) {
      const reference::ExpertRows exact = reference::expert_rows(args);
      return std::vector{expect_equal("expert_offsets", args.expert_offsets, exact.offsets),
                         expect_equal("rows", args.rows, exact.rows)};
    };
    const auto pairs = static_cast<double>(shape.ids.tokens * shape.ids.slots);
    problem.cost = {8.0 * pairs + 4.0 * static_cast<double>(shape.ids.experts + 1), pairs};
  });
}

}  // namespace

void add_routing_cases(std::vector<Case>& cases) {
  const auto route = [&cases](const RouteShape& shape) { cases.push_back(route_case(shape)); };
  route({});
  route({.tokens = 0});
  route({.tokens = 1, .experts = 1, .slots = 1});
  route({.tokens = 33, .experts = 512, .slots = 10});
  route({.experts = 7, .slots = 7});
  route({.experts = 256, .slots = 8, .renormalize = false});
  route({.tokens = 3, .experts = 1100, .slots = 6});
  route({.tokens = 3, .experts = 64, .slots = 40});
  for (const DType dtype : {DType::kF16, DType::kBF16}) route({.experts = 60, .dtype = dtype});
  for (const bool renormalize : {true, false}) {
    for (const Logits logits : {Logits::kTies, Logits::kEqual, Logits::kSpread, Logits::kMissing}) {
      route({.experts = 19, .slots = 5, .logits = logits, .renormalize = renormalize});
    }
  }
  route({.logits = Logits::kTies, .dtype = DType::kBF16, .strided = true});
  for (const bool renormalize : {true, false}) {
    for (const Logits logits : {Logits::kNormal, Logits::kTies, Logits::kSpread, Logits::kMissing}) {
      route({.experts = 19, .slots = 5, .logits = logits, .renormalize = renormalize, .score = RouterScore::kSigmoid});
    }
    for (const RouterScore score : {RouterScore::kSoftmax, RouterScore::kSigmoid}) {
      route({.experts = 40, .slots = 6, .renormalize = renormalize, .score = score, .bias = true});
      route({.tokens = 5, .experts = 64, .slots = 40, .renormalize = renormalize, .score = score, .bias = true});
      route({.experts = 33,
             .slots = 4,
             .logits = Logits::kEqual,
             .renormalize = renormalize,
             .score = score,
             .bias = true});
    }
  }
  route({.tokens = 17, .experts = 256, .slots = 8, .score = RouterScore::kSigmoid, .bias = true});
  route({.tokens = 3, .experts = 1100, .slots = 6, .strided = true, .score = RouterScore::kSigmoid});
  route({.tokens = 0, .score = RouterScore::kSigmoid, .bias = true});
  route({.logits = Logits::kEqual, .dtype = DType::kBF16, .strided = true, .bias = true});
  cases.push_back(for_bench(route_case({.tokens = 512, .experts = 256, .slots = 8})));
  cases.push_back(
      for_bench(route_case({.tokens = 512, .experts = 256, .slots = 8, .score = RouterScore::kSigmoid, .bias = true})));

  const auto rows = [&cases](const ExpertShape& ids, bool strided = false) {
    cases.push_back(rows_case({ids, strided}));
  };
  rows({});
  rows({}, true);
  rows({.tokens = 0});
  rows({.tokens = 1});
  rows({.tokens = 1, .slots = 1, .experts = 1});
  rows({.tokens = 20, .slots = 1, .experts = 1});
  rows({.tokens = 5, .slots = 6, .experts = 6});
  rows({.tokens = 64, .slots = 3, .experts = 40, .ids = Ids::kCrowded});
  rows({.tokens = 64, .slots = 3, .experts = 40, .ids = Ids::kCrowded}, true);
  rows({.tokens = 50, .slots = 4, .experts = 9, .ids = Ids::kOneExpert});
  rows({.tokens = 300, .slots = 8, .experts = 128});
  rows({.tokens = 2, .slots = 8, .experts = 512});
  rows({.tokens = 1000, .slots = 10, .experts = 512});
  rows({.tokens = 3, .slots = 1, .experts = 3});
  // Pairs for many blocks; experts whose counters fill shared memory.
  rows({.tokens = 64, .slots = 3, .experts = 40, .ids = Ids::kElsewhere});
  for (const Ids ids : {Ids::kRouted, Ids::kCrowded, Ids::kOneExpert, Ids::kElsewhere}) {
    rows({.tokens = 10001, .slots = 7, .experts = 100, .ids = ids});
  }
  rows({.tokens = 1025, .slots = 3, .experts = 60}, true);
  rows({.tokens = 700, .slots = 4, .experts = 9000});
  rows({.tokens = 700, .slots = 4, .experts = 30000});
  cases.push_back(for_bench(rows_case({{.tokens = 2048, .slots = 8, .experts = 256}, false})));
}

}  // namespace thalweg::cases
