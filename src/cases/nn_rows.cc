// Cases of the operations on rows: rms_norm, gated_rms_norm, rope, embedding, add, swiglu.

#include <cmath>
#include <optional>

#include "cases/blocks.h"
#include "cases/nn.h"
#include "reference/nn.h"

namespace thalweg::cases {
namespace {

using reference::Precision;

enum class Output { kOwn, kOnX, kOnOther };  // the output's memory: its own, the first or the second input's

struct Rows {
  std::int64_t tokens = 5;
  std::int64_t heads = 0;  // 0: [T,D]
  std::int64_t width = 64;
  DType dtype = DType::kF32;
  DType weight_dtype = DType::kF32;
  bool to_f32 = false;
  std::optional<DType> other = {};  // of the second input: rms_norm's delta
  bool sum = false;                 // rms_norm's second output
  std::optional<DType> to = {};     // dtype of the result
  bool plus_one = false;
  Output output = Output::kOwn;
  bool strided = false;
  double scale = 1.0;

  std::vector<std::int64_t> sizes() const {
    return heads > 0 ? std::vector{tokens, heads, width} : std::vector{tokens, width};
  }
  std::int64_t size() const { return tokens * (heads > 0 ? heads : 1) * width; }
  DType result() const { return to_f32 ? DType::kF32 : to.value_or(dtype); }

  std::string name() const {
    std::string text = "T" + std::to_string(tokens);
    if (heads > 0) text += "_H" + std::to_string(heads);
    text += "_D" + std::to_string(width) + "_" + std::string(dtype_name(dtype));
    if (weight_dtype != DType::kF32) text += "_w" + std::string(dtype_name(weight_dtype));
    if (to_f32) text += "_toF32";
    if (other) text += "_plus" + std::string(dtype_name(*other));
    if (sum) text += "_sum";
    if (to) text += "_to" + std::string(dtype_name(*to));
    if (plus_one) text += "_plus_one";
    if (output == Output::kOnX) text += "_in_place";
    if (output == Output::kOnOther) text += "_on_second";
    if (strided) text += "_strided";
    if (scale > 1.0) text += "_large";
    if (scale < 1.0) text += "_small";
    return text;
  }
};

double bytes(DType dtype, std::int64_t count) { return static_cast<double>(bytes_of(dtype, count)); }

Tensor rows_input(Memory& memory, const Rows& rows, Random& random) {
  memory.set_layout(rows.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
  return memory.input(rows.dtype, rows.sizes(), [&] { return rows.scale * random.normal(); });
}

Tensor rows_output(Memory& memory, const Rows& rows, const ConstTensor& x, const ConstTensor& other) {
  if (rows.output == Output::kOnX) return memory.also_output(x);
  if (rows.output == Output::kOnOther) return memory.also_output(other);
  return memory.output(rows.result(), rows.sizes());
}

Tensor norm_weight(Memory& memory, const Rows& rows, Random& random) {
  const double center = rows.plus_one ? 0.0 : 1.0;
  return memory.input(rows.weight_dtype, {rows.width}, [&] { return center + 0.3 * random.normal(); });
}

Case rms_norm_case(const Rows& rows, float eps = 1e-6F) {
  const std::string name = rows.name() + (eps > 1e-6F ? "_eps" : "");
  return make_case<RmsNormArgs>(name, [rows, eps](OperationProblem<RmsNormArgs>& problem, Random& random) {
    RmsNormArgs& args = problem.args;
    args.x = rows_input(problem.memory, rows, random);
    args.weight = norm_weight(problem.memory, rows, random);
    double moved =
        bytes(rows.dtype, rows.size()) + bytes(rows.result(), rows.size()) + bytes(rows.weight_dtype, rows.width);
    if (rows.other) {
      args.delta = problem.memory.input(*rows.other, rows.sizes(), [&] { return rows.scale * random.normal(); });
      moved += bytes(*rows.other, rows.size());
    }
    if (rows.sum) {
      const bool in_place = rows.output != Output::kOnX;  // the usual residual stream
      args.sum = in_place ? problem.memory.also_output(args.x) : problem.memory.output(rows.dtype, rows.sizes());
      moved += bytes(rows.dtype, rows.size());
    }
    args.y = rows_output(problem.memory, rows, args.x, args.delta);
    args.eps = eps;
    args.weight_plus_one = rows.plus_one;
    problem.find_expected = [](const RmsNormArgs& a) {
      std::vector<Expected> all = {expect("y", a.y, reference::rms_norm(a, Precision::kExact),
                                          reference::rms_norm(a, Precision::kRounded),
                                          f32_bound(static_cast<double>(a.weight.dim(0))))};
      if (a.sum.defined()) {
        all.push_back(expect("sum", a.sum, reference::rms_norm_sum(a, Precision::kExact),
                             reference::rms_norm_sum(a, Precision::kRounded), f32_bound(1.0)));
      }
      return all;
    };
    problem.cost = {moved, 4.0 * static_cast<double>(rows.size())};
  });
}

Case gated_rms_norm_case(const Rows& rows) {
  return make_case<GatedRmsNormArgs>(rows.name(), [rows](OperationProblem<GatedRmsNormArgs>& problem, Random& random) {
    GatedRmsNormArgs& args = problem.args;
    args.x = rows_input(problem.memory, rows, random);
    args.z = problem.memory.input(rows.dtype, rows.sizes(), [&] { return 3.0 * random.normal(); });
    args.weight = norm_weight(problem.memory, rows, random);
    args.y = rows_output(problem.memory, rows, args.x, args.z);
    problem.find_expected = [](const GatedRmsNormArgs& a) {
      return std::vector{expect("y", a.y, reference::gated_rms_norm(a, Precision::kExact),
                                reference::gated_rms_norm(a, Precision::kRounded),
                                f32_bound(static_cast<double>(a.weight.dim(0))))};
    };
    problem.cost = {
        2.0 * bytes(rows.dtype, rows.size()) + bytes(rows.result(), rows.size()) + bytes(rows.weight_dtype, rows.width),
        8.0 * static_cast<double>(rows.size())};
  });
}

Case swiglu_case(const Rows& rows) {
  return make_case<SwigluArgs>(rows.name(), [rows](OperationProblem<SwigluArgs>& problem, Random& random) {
    SwigluArgs& args = problem.args;
    args.gate = rows_input(problem.memory, rows, random);
    args.up = problem.memory.input(rows.dtype, rows.sizes(), [&] { return random.normal(); });
    args.y = rows_output(problem.memory, rows, args.gate, args.up);
    problem.find_expected = [](const SwigluArgs& a) {
      return std::vector{expect("y", a.y, reference::swiglu(a, Precision::kExact),
                                reference::swiglu(a, Precision::kRounded), f32_bound(1.0))};
    };
    problem.cost = {2.0 * bytes(rows.dtype, rows.size()) + bytes(rows.result(), rows.size()),
                    5.0 * static_cast<double>(rows.size())};
  });
}

Case add_case(const Rows& rows) {
  return make_case<AddArgs>(rows.name(), [rows](OperationProblem<AddArgs>& problem, Random& random) {
    AddArgs& args = problem.args;
    args.a = rows_input(problem.memory, rows, random);
    args.b = problem.memory.input(rows.dtype, rows.sizes(), [&] { return rows.scale * random.normal(); });
    args.y = rows_output(problem.memory, rows, args.a, args.b);
    problem.find_expected = [](const AddArgs& a) {
      return std::vector{expect("y", a.y, reference::add(a, Precision::kExact), reference::add(a, Precision::kRounded),
                                f32_bound(1.0))};
    };
    problem.cost = {2.0 * bytes(rows.dtype, rows.size()) + bytes(rows.result(), rows.size()),
                    static_cast<double>(rows.size())};
  });
}

struct Rope {
  std::int64_t tokens = 7;
  std::int64_t heads = 3;
  std::int64_t width = 64;
  int rotary_dim = 16;
  float theta = 1e7F;
  std::int64_t first = 0;  // position of the first token
  std::int64_t step = 1;
  DType dtype = DType::kF32;
  bool in_place = false;
  bool strided = false;
  double scale = 1.0;
  double stretch = 0.0;            // of the wavelengths, from none to all of it over the pairs; 0: no frequencies
  float factor = 1.0F;             // RopeArgs::scale
  std::optional<DType> norm = {};  // of the norm's weight
  bool plus_one = false;

  std::string name() const {
    std::string text = "T" + std::to_string(tokens) + "_H" + std::to_string(heads) + "_D" + std::to_string(width) +
                       "_R" + std::to_string(rotary_dim) + "_" + std::string(dtype_name(dtype));
    if (first > 0 || step != 1) text += "_at" + std::to_string(first) + "_by" + std::to_string(step);
    if (theta < 1e7F) text += "_theta" + std::to_string(static_cast<std::int64_t>(theta));
    if (in_place) text += "_in_place";
    if (strided) text += "_strided";
    if (scale > 1.0) text += "_large";
    if (stretch > 0.0) text += "_stretch" + std::to_string(static_cast<int>(stretch));
    if (norm) text += "_norm" + std::string(dtype_name(*norm)) + (plus_one ? "_plus_one" : "");
    if (factor != 1.0F) text += "_scale" + std::to_string(static_cast<int>(std::lround(factor * 100.0F)));
    return text;
  }

  // As YaRN has them: the fast pairs unchanged, the slow ones slower by `stretch`.
  double frequency(std::int64_t i) const {
    const double plain = std::pow(static_cast<double>(theta), -2.0 * static_cast<double>(i) / rotary_dim);
    const double share = 2.0 * static_cast<double>(i + 1) / rotary_dim;
    return plain * (1.0 - share) + plain / stretch * share;
  }
};

Case rope_case(const Rope& rope) {
  return make_case<RopeArgs>(rope.name(), [rope](OperationProblem<RopeArgs>& problem, Random& random) {
    Memory& memory = problem.memory;
    memory.set_layout(rope.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
    const std::vector<std::int64_t> sizes = {rope.tokens, rope.heads, rope.width};
    RopeArgs& args = problem.args;
    args.x = memory.input(rope.dtype, sizes, [&] { return rope.scale * random.normal(); });
    std::vector<std::int64_t> positions;
    for (std::int64_t t = 0; t < rope.tokens; ++t) positions.push_back(rope.first + t * rope.step);
    args.positions = integers(memory, positions);
    if (rope.stretch > 0.0) {
      std::int64_t i = 0;
      args.frequencies = memory.input(DType::kF32, {rope.rotary_dim / 2}, [&] { return rope.frequency(i++); });
    }
    args.scale = rope.factor;
    if (rope.norm) {
      const double center = rope.plus_one ? 0.0 : 1.0;
      args.norm_weight = memory.input(*rope.norm, {rope.width}, [&] { return center + 0.3 * random.normal(); });
      args.norm_weight_plus_one = rope.plus_one;
    }
    args.y = rope.in_place ? memory.also_output(args.x) : memory.output(rope.dtype, sizes);
    args.rotary_dim = rope.rotary_dim;
    args.theta = rope.theta;
    problem.find_expected = [](const RopeArgs& a) {
      return std::vector{expect("y", a.y, reference::rope(a, Precision::kExact),
                                reference::rope(a, Precision::kRounded),
                                f32_bound(a.norm_weight.defined() ? static_cast<double>(a.x.dim(2)) : 2.0))};
    };
    const std::int64_t size = rope.tokens * rope.heads * rope.width;
    problem.cost = {2.0 * bytes(rope.dtype, size) + 4.0 * static_cast<double>(rope.tokens),
                    3.0 * static_cast<double>(rope.tokens * rope.heads * rope.rotary_dim)};
  });
}

struct Table {
  std::int64_t vocabulary = 50;
  std::int64_t width = 64;
  DType dtype = DType::kF32;
  DType result = DType::kF32;
  std::int64_t tokens = 9;
  bool strided = false;

  std::string name() const {
    return "T" + std::to_string(tokens) + "_V" + std::to_string(vocabulary) + "_D" + std::to_string(width) + "_" +
           std::string(dtype_name(dtype)) + "_to" + std::string(dtype_name(result)) + (strided ? "_strided" : "");
  }
};

Case embedding_case(const Table& table) {
  return make_case<EmbeddingArgs>(table.name(), [table](OperationProblem<EmbeddingArgs>& problem, Random& random) {
    Memory& memory = problem.memory;
    memory.set_layout(table.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
    EmbeddingArgs& args = problem.args;
    args.table = memory.input_bytes(table.dtype, {table.vocabulary, table.width}, [&](void* row, std::int64_t count) {
      fill_blocks(table.dtype, BlockScales::kOrdinary, random, row, count);
    });
    // First, last, then any; some twice.
    std::vector<std::int64_t> ids;
    for (std::int64_t t = 0; t < table.tokens; ++t) ids.push_back(t == 0 ? 0 : random.below(table.vocabulary));
    if (table.tokens > 1) ids[1] = table.vocabulary - 1;
    if (table.tokens > 2) ids.back() = ids[1];
    args.ids = integers(memory, ids);
    args.y = memory.output(table.result, {table.tokens, table.width});
    problem.find_expected = [](const EmbeddingArgs& a) {
      return std::vector{expect_equal("y", a.y, reference::embedding(a, Precision::kRounded))};
    };
    problem.cost = {
        static_cast<double>(table.tokens) * (4.0 + bytes(table.dtype, table.width) + bytes(table.result, table.width)),
        static_cast<double>(table.tokens * table.width)};
  });
}

std::vector<Rows> norm_shapes() {
  const DType f16 = DType::kF16;
  const DType bf16 = DType::kBF16;
  std::vector<Rows> list;
  for (const std::int64_t t : {0, 1, 17}) list.push_back({.tokens = t});
  for (const std::int64_t d : {1, 3, 15, 33, 127, 2048, 20000}) list.push_back({.width = d});
  list.push_back({.tokens = 300, .width = 129});
  for (const DType dtype : {f16, bf16}) {
    list.push_back({.width = 100, .dtype = dtype});
    list.push_back({.width = 100, .dtype = dtype, .to_f32 = true});
    list.push_back({.dtype = dtype, .weight_dtype = dtype, .output = Output::kOnX});
    list.push_back({.weight_dtype = dtype, .strided = true});
  }
  list.push_back({.output = Output::kOnX});
  list.push_back({.width = 70, .strided = true});
  list.push_back({.width = 70, .output = Output::kOnX, .strided = true});
  list.push_back({.width = 2048, .scale = 1e5});
  list.push_back({.width = 2048, .dtype = bf16, .scale = 1e5});
  list.push_back({.width = 256, .scale = 1e-3});
  return list;
}

std::vector<Rope> rope_shapes() {
  const DType bf16 = DType::kBF16;
  std::vector<Rope> list;
  for (const std::int64_t t : {0, 1, 33}) list.push_back({.tokens = t});
  for (const int r : {2, 6, 32, 64}) list.push_back({.rotary_dim = r});
  list.push_back({.width = 37, .rotary_dim = 36});
  list.push_back({.heads = 1, .width = 2, .rotary_dim = 2});
  list.push_back({.heads = 0});
  // Long contexts: the fastest pairs rotate many times.
  list.push_back({.tokens = 40, .rotary_dim = 64, .first = 1'000'000, .step = 1});
  list.push_back({.tokens = 40, .rotary_dim = 64, .first = 262'143, .step = 40'961});
  list.push_back({.tokens = 20, .rotary_dim = 64, .theta = 1e4F, .first = 2'000'000'000, .step = 7'000'001});
  list.push_back({.tokens = 30, .rotary_dim = 64, .theta = 1e4F, .first = 5000, .step = -100});
  for (const DType dtype : {DType::kF16, bf16}) {
    list.push_back({.width = 128, .rotary_dim = 32, .first = 1000, .dtype = dtype});
    list.push_back({.first = 77, .dtype = dtype, .in_place = true});
  }
  list.push_back({.first = 5, .in_place = true});
  list.push_back({.width = 44, .rotary_dim = 24, .first = 5, .strided = true});
  list.push_back({.first = 5, .dtype = bf16, .in_place = true, .strided = true});
  list.push_back({.first = 9, .scale = 1e5});
  // Scaled contexts.
  list.push_back({.tokens = 33, .rotary_dim = 64, .stretch = 4.0, .factor = 1.14F});
  list.push_back({.tokens = 40, .rotary_dim = 64, .first = 1'000'000, .stretch = 4.0, .factor = 0.83F});
  list.push_back({.tokens = 20, .rotary_dim = 64, .first = 2'000'000'000, .step = 7'000'001, .stretch = 32.0});
  list.push_back({.heads = 1, .width = 2, .rotary_dim = 2, .first = 3, .stretch = 2.0, .factor = 3.0F});
  list.push_back({.first = 5, .factor = 0.5F});
  list.push_back({.tokens = 0, .stretch = 4.0, .factor = 2.0F});
  // Normalized heads, as queries and keys of attention are.
  for (const bool plus_one : {false, true}) {
    list.push_back({.first = 5, .norm = DType::kF32, .plus_one = plus_one});
    list.push_back({.tokens = 33,
                    .heads = 16,
                    .width = 256,
                    .rotary_dim = 64,
                    .first = 4000,
                    .dtype = bf16,
                    .in_place = true,
                    .strided = true,
                    .norm = DType::kF32,
                    .plus_one = plus_one});
  }
  list.push_back({.width = 37, .rotary_dim = 36, .norm = bf16});
  list.push_back({.tokens = 9,
                  .heads = 2,
                  .width = 128,
                  .rotary_dim = 128,
                  .first = 70'000,
                  .dtype = DType::kF16,
                  .scale = 100.0,
                  .stretch = 4.0,
                  .factor = 1.14F,
                  .norm = DType::kF16});
  list.push_back({.heads = 1, .width = 2, .rotary_dim = 2, .norm = DType::kF32});
  for (const DType dtype : {DType::kF16, bf16}) {
    list.push_back({.width = 128, .rotary_dim = 32, .first = 1000, .dtype = dtype, .stretch = 4.0, .factor = 1.14F});
    list.push_back({.first = 77, .dtype = dtype, .in_place = true, .strided = true, .stretch = 8.0, .factor = 1.2F});
  }
  return list;
}

std::vector<Table> tables() {
  std::vector<Table> list;
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    if (dtype == DType::kI32) continue;
    const std::int64_t width = is_block_format(dtype) ? 2 * dtype_info(dtype).block_size : 67;
    list.push_back({.width = width, .dtype = dtype});
    list.push_back({.width = width, .dtype = dtype, .result = DType::kBF16});
  }
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16, DType::kQ4_K, DType::kQ8_0}) {
    list.push_back({.width = 512, .dtype = dtype, .result = DType::kF16});
    list.push_back({.width = 256, .dtype = dtype, .strided = true});
  }
  for (const std::int64_t t : {0, 1, 100}) list.push_back({.vocabulary = 1 + t, .width = 31, .tokens = t});
  return list;
}

}  // namespace

void add_row_cases(std::vector<Case>& cases) {
  const DType bf16 = DType::kBF16;
  for (const Rows& rows : norm_shapes()) cases.push_back(rms_norm_case(rows));
  for (const bool plus_one : {false, true}) {
    cases.push_back(rms_norm_case({.heads = 3, .width = 48, .plus_one = plus_one}));
    cases.push_back(rms_norm_case({.heads = 2, .width = 256, .dtype = bf16, .plus_one = plus_one, .strided = true}));
    cases.push_back(rms_norm_case({.width = 50, .plus_one = plus_one, .scale = 1e-3}, 1e-2F));
  }
  cases.push_back(rms_norm_case({.tokens = 3, .heads = 5, .width = 37, .weight_dtype = bf16, .plus_one = true}));
  const DType f32 = DType::kF32;
  for (const DType other : {f32, DType::kF16, bf16}) {
    cases.push_back(rms_norm_case({.width = 100, .other = other, .sum = true, .to = bf16}));
    cases.push_back(rms_norm_case({.tokens = 3, .heads = 2, .width = 2050, .other = other, .strided = true}));
    cases.push_back(rms_norm_case({.width = 33, .other = other, .sum = true, .output = Output::kOnX}));
  }
  cases.push_back(rms_norm_case({.width = 2048, .other = bf16, .sum = true, .to = bf16, .scale = 1e5}));
  cases.push_back(rms_norm_case({.width = 5120, .other = bf16, .sum = true, .to = bf16, .plus_one = true}));
  cases.push_back(rms_norm_case({.width = 2050, .other = f32, .output = Output::kOnOther}));
  cases.push_back(rms_norm_case({.tokens = 0, .other = f32, .sum = true}));
  cases.push_back(rms_norm_case({.dtype = bf16, .other = bf16, .sum = true, .to = f32}));
  for (const std::int64_t tokens : {1, 512, 8192}) {
    cases.push_back(
        bench_case(rms_norm_case({.tokens = tokens, .width = 2048, .other = bf16, .sum = true, .to = bf16})));
  }
  cases.push_back(bench_case(rms_norm_case({.tokens = 512, .width = 2048, .dtype = bf16})));
  cases.push_back(bench_case(rms_norm_case({.tokens = 1, .width = 2048, .dtype = bf16})));

  for (Rows rows : norm_shapes()) {
    rows.heads = 2;
    cases.push_back(gated_rms_norm_case(rows));
  }
  cases.push_back(gated_rms_norm_case({.heads = 3, .width = 40, .output = Output::kOnOther}));
  cases.push_back(gated_rms_norm_case({.heads = 3, .dtype = bf16, .output = Output::kOnOther, .strided = true}));
  cases.push_back(bench_case(gated_rms_norm_case({.tokens = 512, .heads = 32, .width = 128, .dtype = bf16})));

  for (const Rope& rope : rope_shapes()) cases.push_back(rope_case(rope));
  cases.push_back(bench_case(
      rope_case({.tokens = 512, .heads = 16, .width = 256, .rotary_dim = 64, .first = 4096, .dtype = bf16})));

  for (const Table& table : tables()) cases.push_back(embedding_case(table));
  cases.push_back(
      bench_case(embedding_case({.vocabulary = 8192, .width = 2048, .dtype = DType::kQ4_K, .tokens = 512})));

  for (const Rows& rows : norm_shapes()) {
    if (rows.weight_dtype != DType::kF32) continue;
    cases.push_back(swiglu_case(rows));
    cases.push_back(add_case(rows));
  }
  for (const std::int64_t width : {2047, 2049, 4100}) cases.push_back(add_case({.width = width}));
  cases.push_back(add_case({.width = 70, .output = Output::kOnOther}));
  cases.push_back(add_case({.width = 2100, .dtype = bf16, .output = Output::kOnX, .strided = true}));
  cases.push_back(bench_case(add_case({.tokens = 512, .width = 2048})));
  for (const std::int64_t width : {2047, 2049, 4100}) cases.push_back(swiglu_case({.width = width}));
  cases.push_back(swiglu_case({.width = 70, .output = Output::kOnOther}));
  cases.push_back(swiglu_case({.width = 2100, .dtype = bf16, .output = Output::kOnX, .strided = true}));
  // One expert's width times eight experts' tokens.
  cases.push_back(bench_case(swiglu_case({.tokens = 4096, .width = 512, .dtype = bf16})));
}

}  // namespace thalweg::cases
