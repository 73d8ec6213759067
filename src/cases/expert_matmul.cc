// Cases of mul_mm_id, mul_mv_id and mul_mat_id, which share contract and oracle.

#include <cstring>

#include "cases/experts.h"
#include "reference/moe.h"

namespace thalweg::cases {
namespace {

template <class Args>
Case expert_case(const ExpertShape& shape) {
  return make_case<Args>(shape.name(), [shape](OperationProblem<Args>& problem, Random& random) {
    static_cast<ExpertMatmulArgs&>(problem.args) = make_expert_args(shape, problem.memory, random);
    problem.find_expected = [large = shape.large](const Args& args) { return expect_products(args, large); };
    problem.cost = expert_cost(problem.args);
  });
}

// What the document compares with: one `linear` per hit expert over its gathered rows. Same arguments, oracle and cost
// as mul_mat_id.
class PerExpertLoop final : public Problem {
 public:
  PerExpertLoop(const ExpertShape& shape, Random& random) : args_(make_expert_args(shape, memory, random)) {
    cost = expert_cost(args_);
    const auto* ids = static_cast<const std::int32_t*>(args_.expert_ids.data);
    rows_.resize(static_cast<std::size_t>(shape.experts));
    for (std::int64_t pair = 0; pair < args_.expert_ids.size(); ++pair) {
      rows_[static_cast<std::size_t>(ids[pair])].push_back(pair);
      most_rows_ = std::max<std::int64_t>(most_rows_, std::ssize(rows_[static_cast<std::size_t>(ids[pair])]));
    }
  }

  std::size_t workspace_bytes(const Stream& stream) const override {
    return gathered_bytes() + product_bytes() + workspace_size(linear_of(0, most_rows_, nullptr), stream);
  }
  Explanation explanation(const Stream& stream) const override {
    return explain(linear_of(0, most_rows_, nullptr), stream);
  }
  void run(Workspace workspace, const Stream& stream) const override {
    auto* base = static_cast<char*>(workspace.data);
    const std::size_t before = gathered_bytes() + product_bytes();
    const std::int64_t slots = args_.expert_ids.dim(1);
    const auto x_bytes = static_cast<std::size_t>(bytes_of(args_.x.dtype, args_.x.dim(1)));
    const auto y_bytes = static_cast<std::size_t>(bytes_of(args_.y.dtype, args_.y.dim(2)));
    for (std::size_t e = 0; e < rows_.size(); ++e) {
      const std::vector<std::int64_t>& rows = rows_[e];
      if (rows.empty()) continue;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        std::memcpy(base + i * x_bytes, args_.x.row(rows[i] / slots), x_bytes);
      }
      const LinearArgs linear = linear_of(static_cast<std::int64_t>(e), std::ssize(rows), base);
      thalweg::run(linear, {base + before, workspace.bytes - before}, stream);
      for (std::size_t i = 0; i < rows.size(); ++i) {
        std::memcpy(args_.y.row(rows[i] / slots, rows[i] % slots), linear.y.row(static_cast<std::int64_t>(i)), y_bytes);
      }
    }
  }

 protected:
  std::vector<Expected> oracle() const override { return expect_products(args_, true); }

 private:
  static std::size_t whole_lines(std::int64_t bytes) { return static_cast<std::size_t>((bytes + 63) / 64 * 64); }
  std::size_t gathered_bytes() const { return whole_lines(bytes_of(args_.x.dtype, most_rows_ * args_.x.dim(1))); }
  std::size_t product_bytes() const { return whole_lines(bytes_of(args_.y.dtype, most_rows_ * args_.y.dim(2))); }

  LinearArgs linear_of(std::int64_t expert, std::int64_t rows, char* base) const {
    LinearArgs linear;
    linear.x = ConstTensor(base, args_.x.dtype, {rows, args_.x.dim(1)}, args_.x.device);
    linear.weight = ConstTensor(args_.weight.row(expert), args_.weight.dtype,
                                {args_.weight.dim(1), args_.weight.dim(2)}, args_.weight.device);
    linear.y = Tensor(base == nullptr ? nullptr : base + gathered_bytes(), args_.y.dtype, {rows, args_.y.dim(2)},
                      args_.y.device);
    linear.precision = args_.precision;
    return linear;
  }

  ExpertMatmulArgs args_;
  std::vector<std::vector<std::int64_t>> rows_;  // by expert
  std::int64_t most_rows_ = 0;
};

// In both precisions, which have kernels of their own.
std::vector<ExpertShape> shapes() {
  std::vector<ExpertShape> list;
  for (const DType weight : weight_types()) list.push_back({.weight = weight});
  list.push_back({.tokens = 0});
  list.push_back({.tokens = 1});
  list.push_back({.tokens = 1, .slots = 6, .ids = Ids::kRouted});  // top_k = E
  list.push_back({.tokens = 40, .slots = 3, .experts = 30, .ids = Ids::kCrowded});
  list.push_back({.slots = 3, .ids = Ids::kElsewhere});
  list.push_back({.tokens = 90, .slots = 3, .experts = 8, .weight = DType::kQ6_K, .ids = Ids::kElsewhere});
  list.push_back({.tokens = 9, .weight = DType::kBF16, .ids = Ids::kElsewhere});
  list.push_back({.tokens = 130, .n = 17, .weight = DType::kQ8_0, .ids = Ids::kOneExpert});
  list.push_back({.tokens = 9, .slots = 1, .experts = 1, .weight = DType::kQ6_K});
  list.push_back({.tokens = 40, .n = 1, .weight = DType::kQ4_0});
  list.push_back({.n = 15, .k = 32, .weight = DType::kQ5_1});
  list.push_back({.n = 33, .k = 288, .weight = DType::kMXFP4});
  list.push_back({.n = 64, .weight = DType::kQ5_K, .per_slot = true});
  list.push_back({.x = DType::kBF16, .y = DType::kBF16});
  list.push_back({.weight = DType::kQ3_K, .x = DType::kF16, .y = DType::kF16});
  list.push_back({.weight = DType::kQ8_0, .x = DType::kBF16, .y = DType::kF32, .per_slot = true});
  list.push_back({.weight = DType::kQ4_K, .strided = true});
  list.push_back({.n = 21, .weight = DType::kIQ4_NL, .x = DType::kBF16, .per_slot = true, .strided = true});
  list.push_back({.weight = DType::kQ4_K, .fused = true});
  list.push_back({.weight = DType::kQ6_K, .size = 1e5});
  // Many rows of an expert, next to few and none; N and K between tiles.
  list.push_back({.tokens = 300, .experts = 5, .n = 130, .k = 768, .ids = Ids::kCrowded});
  list.push_back(
      {.tokens = 260, .slots = 1, .experts = 3, .n = 200, .k = 416, .weight = DType::kQ8_0, .ids = Ids::kOneExpert});
  list.push_back(
      {.tokens = 90, .slots = 3, .experts = 4, .n = 65, .weight = DType::kQ6_K, .x = DType::kBF16, .per_slot = true});
  // Rows of weights that begin at odd addresses, with many rows of an expert and with few.
  for (const std::int64_t experts : {4, 10}) {
    list.push_back({.tokens = 90, .slots = 3, .experts = experts, .n = 200, .k = 768, .weight = DType::kQ6_K});
  }
  // Few on average, many of one.
  list.push_back({.tokens = 170, .slots = 1, .experts = 9, .n = 193, .k = 512, .ids = Ids::kOneExpert});
  // Weights that are not unpacked, in wide tiles and over many columns.
  for (const DType weight : {DType::kF16, DType::kBF16}) {
    list.push_back(
        {.tokens = 260, .slots = 1, .experts = 3, .n = 140, .k = 1024, .weight = weight, .ids = Ids::kOneExpert});
  }
  // Plain types of any K.
  list.push_back({.n = 19, .k = 100, .weight = DType::kF32});
  list.push_back({.n = 19, .k = 13, .weight = DType::kF16, .strided = true});
  list.push_back({.n = 16, .k = 257, .weight = DType::kBF16, .x = DType::kBF16, .y = DType::kBF16});
  list.push_back({.n = 8, .k = 1, .weight = DType::kF32, .size = 1e5});
  const std::size_t count = list.size();
  for (std::size_t i = 0; i < count; ++i) {
    list.push_back(list[i]);
    list.back().precision = MatmulPrecision::kFast;
  }
  return list;
}

// The document's own sweep.
void add_sweep(std::vector<Case>& cases) {
  const auto add = [&cases](std::int64_t tokens, DType weight, MatmulPrecision precision) {
    const ExpertShape shape{.tokens = tokens,
                            .slots = 8,
                            .experts = 128,
                            .n = 2048,
                            .k = 4096,
                            .weight = weight,
                            .precision = precision,
                            .large = true};
    cases.push_back(for_bench(expert_case<MulMatIdArgs>(shape)));
    Case loop;
    loop.operation = MulMatIdArgs::kName;
    loop.name = shape.name() + "_per_expert_loop";
    loop.make = [shape](std::uint64_t seed) -> std::unique_ptr<Problem> {
      Random random(seed ^ hash("mul_mat_id/" + shape.name()));
      return std::make_unique<PerExpertLoop>(shape, random);
    };
    cases.push_back(for_bench(std::move(loop)));
  };
  for (const std::int64_t tokens : {1, 32, 256}) {
    for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
      add(tokens, DType::kQ4_K, precision);
    }
  }
  for (const std::int64_t tokens : {1, 32}) add(tokens, DType::kF16, MatmulPrecision::kExact);
  // The two kernels by themselves, at a size that fits a laptop.
  const ExpertShape small{
      .tokens = 16, .slots = 8, .experts = 64, .n = 512, .k = 2048, .weight = DType::kQ4_K, .large = true};
  cases.push_back(for_bench(expert_case<MulMmIdArgs>(small)));
  cases.push_back(for_bench(expert_case<MulMvIdArgs>(small)));
}

}  // namespace

void add_expert_matmul_cases(std::vector<Case>& cases) {
  for (const ExpertShape& shape : shapes()) cases.push_back(expert_case<MulMmIdArgs>(shape));
  // Some experts have more than eight rows, some fewer; rows of weights beyond 128.
  for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
    for (const DType weight : block_types()) {
      cases.push_back(expert_case<MulMmIdArgs>(
          {.tokens = 13, .slots = 2, .experts = 3, .n = 136, .weight = weight, .precision = precision}));
    }
  }
  for (const ExpertShape& shape : shapes()) cases.push_back(expert_case<MulMvIdArgs>(shape));
  for (const ExpertShape& shape : shapes()) cases.push_back(expert_case<MulMatIdArgs>(shape));
  for (const MatmulPrecision precision : {MatmulPrecision::kExact, MatmulPrecision::kFast}) {
    // The expert layers of the 35B-A3B model.
    ExpertShape shape{.tokens = 64, .slots = 8, .experts = 256, .n = 512, .k = 2048, .precision = precision};
    shape.large = true;
    cases.push_back(for_bench(expert_case<MulMmIdArgs>(shape)));
    shape.tokens = 1;
    cases.push_back(for_bench(expert_case<MulMvIdArgs>(shape)));
  }
  add_sweep(cases);
}

}  // namespace thalweg::cases
