// Cases of attention. A cache holds NaN beyond a sequence's length and in unused slots.

#include <algorithm>
#include <limits>
#include <numeric>

#include "cases/nn.h"
#include "reference/nn.h"

namespace thalweg::cases {
namespace {

using reference::Precision;

struct Attend {
  std::vector<std::int64_t> fresh = {1};  // new tokens of each sequence
  std::vector<std::int64_t> before = {};  // tokens cached before them; none without
  std::vector<std::int64_t> slots = {};   // in a cache of two more slots than sequences
  std::int64_t capacity = 0;              // S; 0: the longest sequence
  std::int64_t heads = 4;
  std::int64_t key_heads = 2;
  std::int64_t width = 32;
  DType dtype = DType::kF32;
  DType cache_dtype = DType::kF32;
  bool to_f32 = false;
  bool gate = false;
  std::optional<float> scale = {};
  bool strided = false;
  double values = 1.0;     // standard deviation of the values
  std::int64_t rows = -1;  // (token, head) pairs to check; -1: all of them

  std::int64_t tokens() const { return std::accumulate(fresh.begin(), fresh.end(), std::int64_t{0}); }
  std::vector<std::int64_t> lengths() const {
    std::vector<std::int64_t> sums = fresh;
    for (std::size_t n = 0; n < before.size(); ++n) sums[n] += before[n];
    return sums;
  }
  std::int64_t longest() const {
    std::int64_t length = 0;
    for (const std::int64_t candidate : lengths()) length = std::max(length, candidate);
    return length;
  }
  std::int64_t positions() const { return capacity > 0 ? capacity : std::max<std::int64_t>(1, longest()); }

  std::string name() const {
    std::string text = "new" + list_name(fresh);
    if (!before.empty()) text += "_after" + list_name(before);
    if (!slots.empty()) text += "_slots" + list_name(slots);
    text += "_S" + std::to_string(positions()) + "_H" + std::to_string(heads) + "_" + std::to_string(key_heads) + "_D" +
            std::to_string(width) + "_" + std::string(dtype_name(dtype)) + "_cache" +
            std::string(dtype_name(cache_dtype));
    if (to_f32) text += "_toF32";
    if (gate) text += "_gate";
    if (scale) text += "_scale";
    if (strided) text += "_strided";
    if (values > 1.0) text += "_large";
    return text;
  }
};

Tensor make_cache(Memory& memory, const Attend& attend, Random& random, double deviation) {
  const auto sequences = static_cast<std::int64_t>(attend.fresh.size());
  const std::int64_t places = attend.slots.empty() ? sequences : sequences + 2;
  const std::vector<std::int64_t> lengths = attend.lengths();
  std::vector<std::int64_t> filled(static_cast<std::size_t>(places), 0);
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    std::int64_t& length = filled[attend.slots.empty() ? n : static_cast<std::size_t>(attend.slots[n])];
    length = std::max(length, lengths[n]);
  }
  std::int64_t i = 0;
  return memory.input(attend.cache_dtype, {places, attend.positions(), attend.key_heads, attend.width}, [&] {
    const std::int64_t position = i++ / (attend.key_heads * attend.width);
    const bool live = position % attend.positions() < filled[static_cast<std::size_t>(position / attend.positions())];
    return live ? deviation * random.normal() : std::numeric_limits<double>::quiet_NaN();
  });
}

// A sample of rows, with the first and the last, and the indices of their elements in the output.
Expected expect_rows(const AttentionArgs& args, std::int64_t rows, Bound bound) {
  const std::int64_t heads = args.q.dim(1);
  const std::int64_t width = args.q.dim(2);
  const std::int64_t all = args.q.dim(0) * heads;
  const reference::Attention oracle(args);
  reference::Array exact({rows, width});
  reference::Array rounded({rows, width});
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t row = rows > 1 ? i * (all - 1) / (rows - 1) : 0;
    const auto copy = [&](Precision precision, reference::Array& to) {
      const std::vector<double> values = oracle.row(row / heads, row % heads, precision);
      std::copy(values.begin(), values.end(), to.values.begin() + i * width);
    };
    copy(Precision::kExact, exact);
    copy(Precision::kRounded, rounded);
    for (std::int64_t d = 0; d < width; ++d) indices.push_back(row * width + d);
  }
  Expected expected = expect("o", args.o, exact, rounded, bound);
  expected.indices = std::move(indices);
  return expected;
}

Cost attention_cost(const Attend& attend) {
  double visible = 0.0;  // (new token, cached token) pairs
  double cached = 0.0;
  const std::vector<std::int64_t> lengths = attend.lengths();
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    const auto fresh = static_cast<double>(attend.fresh[n]);
    const auto length = static_cast<double>(lengths[n]);
    visible += fresh * (length - fresh) + fresh * (fresh + 1.0) / 2.0;
    if (fresh > 0.0) cached += length;
  }
  const auto width = [](DType dtype) { return static_cast<double>(dtype_info(dtype).block_bytes); };
  const double query = static_cast<double>(attend.tokens() * attend.heads * attend.width);
  const double key = static_cast<double>(attend.key_heads * attend.width);
  return {
      query * (width(attend.dtype) * (attend.gate ? 2.0 : 1.0) + width(attend.to_f32 ? DType::kF32 : attend.dtype)) +
          2.0 * cached * key * width(attend.cache_dtype),
      4.0 * visible * static_cast<double>(attend.heads * attend.width)};
}

Case attention_case(const Attend& attend) {
  return make_case<AttentionArgs>(attend.name(), [attend](OperationProblem<AttentionArgs>& problem, Random& random) {
    Memory& memory = problem.memory;
    memory.set_layout(attend.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
    const std::vector<std::int64_t> sizes = {attend.tokens(), attend.heads, attend.width};
    const auto normal = [&] { return random.normal(); };
    AttentionArgs& args = problem.args;
    args.q = memory.input(attend.dtype, sizes, normal);
    args.k_cache = make_cache(memory, attend, random, 1.0);
    args.v_cache = make_cache(memory, attend, random, attend.values);
    args.cu_seqlens = cu_seqlens_of(memory, attend.fresh);
    args.lengths = integers(memory, attend.lengths());
    if (!attend.slots.empty()) args.slots = integers(memory, attend.slots);
    if (attend.gate) args.gate = memory.input(attend.dtype, sizes, [&] { return 2.0 * random.normal(); });
    args.o = memory.output(attend.to_f32 ? DType::kF32 : attend.dtype, sizes);
    args.scale = attend.scale;
    const Bound bound = f32_bound(static_cast<double>(attend.width + attend.longest()));
    problem.find_expected = [bound, rows = attend.rows](const AttentionArgs& a) {
      if (rows >= 0) return std::vector{expect_rows(a, rows, bound)};
      return std::vector{expect("o", a.o, reference::attention(a, Precision::kExact),
                                reference::attention(a, Precision::kRounded), bound)};
    };
    problem.cost = attention_cost(attend);
  });
}

std::vector<Attend> shapes() {
  const DType f16 = DType::kF16;
  const DType bf16 = DType::kBF16;
  std::vector<Attend> list;
  // No sequence, no token, one token, prefill around the sizes of a kernel's blocks.
  list.push_back({.fresh = {}});
  list.push_back({.fresh = {0}});
  list.push_back({.fresh = {0, 0}, .before = {5, 0}});
  for (const std::int64_t t : {1, 2, 15, 31, 32, 33, 63, 64, 65, 130}) list.push_back({.fresh = {t}});
  // Shared key heads.
  for (const std::int64_t ratio : {1, 2, 3, 4, 8}) {
    list.push_back({.fresh = {1}, .before = {100}, .heads = 2 * ratio, .key_heads = 2});
    list.push_back({.fresh = {70}, .before = {9}, .heads = 2 * ratio, .key_heads = 2});
  }
  list.push_back({.fresh = {5}, .before = {80}, .heads = 96, .key_heads = 1, .width = 16});
  // Head sizes off and on whole vectors.
  for (const std::int64_t d : {1, 7, 24, 80, 128, 256}) {
    list.push_back({.fresh = {3}, .before = {70}, .width = d});
    list.push_back({.fresh = {40}, .before = {1}, .width = d, .dtype = bf16, .cache_dtype = bf16});
  }
  // Long caches of several spans: lengths on their edges, far below the capacity, and a partly masked span.
  for (const std::int64_t length : {511, 512, 513, 1023, 2000}) {
    list.push_back({.fresh = {1}, .before = {length - 1}, .capacity = 2048, .heads = 8});
    list.push_back({.fresh = {4}, .before = {length - 4}, .capacity = 2048, .dtype = bf16, .cache_dtype = bf16});
  }
  list.push_back({.fresh = {1}, .before = {3}, .capacity = 5000, .heads = 2, .key_heads = 1});
  list.push_back({.fresh = {1}, .before = {19999}, .capacity = 20000, .heads = 2, .key_heads = 1, .width = 16});
  list.push_back({.fresh = {70}, .before = {1000}, .capacity = 1200, .heads = 2, .key_heads = 1});
  list.push_back({.fresh = {2, 0, 1, 3}, .before = {510, 7, 0, 1500}, .capacity = 1600, .gate = true});
  // Ragged batches, permuted and shared slots.
  list.push_back({.fresh = {3, 0, 1, 64, 0}, .before = {0, 8, 63, 5, 0}});
  list.push_back({.fresh = {1, 1, 1}, .before = {5, 0, 130}, .slots = {3, 0, 1}});
  list.push_back({.fresh = {2, 9, 1}, .before = {7, 0, 40}, .slots = {4, 1, 1}, .capacity = 60, .gate = true});
  // Dtypes, gate, scale, views, large values.
  for (const DType dtype : {f16, bf16}) {
    list.push_back({.fresh = {1}, .before = {90}, .dtype = dtype, .cache_dtype = dtype, .gate = true});
    list.push_back({.fresh = {37}, .before = {90}, .dtype = dtype, .cache_dtype = dtype, .to_f32 = true});
    list.push_back({.fresh = {6}, .before = {90}, .cache_dtype = dtype});
    list.push_back({.fresh = {6}, .before = {90}, .dtype = dtype});
    list.push_back(
        {.fresh = {35}, .before = {90}, .dtype = dtype, .cache_dtype = dtype, .gate = true, .strided = true});
  }
  list.push_back({.fresh = {6, 20}, .before = {90, 3}, .slots = {2, 0}, .width = 40, .gate = true, .strided = true});
  list.push_back({.fresh = {1}, .before = {700}, .capacity = 800, .gate = true, .strided = true});
  list.push_back({.fresh = {20}, .before = {20}, .scale = 0.0F});
  list.push_back({.fresh = {20}, .before = {21}, .scale = -0.3F});
  list.push_back({.fresh = {9}, .before = {100}, .scale = 2.0F});  // nearly one-hot
  list.push_back({.fresh = {20}, .before = {22}, .values = 1e5});
  list.push_back({.fresh = {1}, .before = {600}, .dtype = bf16, .cache_dtype = bf16, .values = 1e5});
  return list;
}

}  // namespace

void add_attention_cases(std::vector<Case>& cases) {
  for (const Attend& attend : shapes()) cases.push_back(attention_case(attend));
  // The attention of a model of 35 billion weights: a decode step, a batch of them, a prefill.
  Attend model{.heads = 16, .key_heads = 2, .width = 256, .dtype = DType::kBF16, .cache_dtype = DType::kBF16};
  model.gate = true;
  model.rows = 32;
  model.before = {4095};
  cases.push_back(bench_case(attention_case(model)));
  model.fresh = std::vector<std::int64_t>(8, 1);
  model.before = std::vector<std::int64_t>(8, 2047);
  cases.push_back(bench_case(attention_case(model)));
  model.fresh = {512};
  model.before = {512};
  cases.push_back(bench_case(attention_case(model)));
}

}  // namespace thalweg::cases
