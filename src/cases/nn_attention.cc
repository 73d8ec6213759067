// Cases of attention. A cache holds NaN beyond a sequence's length and in unused slots and pages.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cases/attend.h"
#include "cases/nn.h"
#include "reference/nn.h"

namespace thalweg::cases {
namespace {

using reference::Precision;

// Which slots or pages the sequences have, and how many rows of each hold something.
struct Places {
  std::vector<std::int64_t> table;   // slots [N], or pages [N,P]
  std::vector<std::int64_t> filled;  // [slots] or [pages]
  std::int64_t rows = 0;             // S
};

Places slots_of(const Attend& attend) {
  const std::vector<std::int64_t> lengths = attend.lengths();
  Places places{attend.slots, std::vector<std::int64_t>(lengths.size() + (attend.slots.empty() ? 0 : 2), 0),
                attend.positions()};
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    if (attend.is_absent(n)) continue;
    std::int64_t& length = places.filled[attend.slots.empty() ? n : static_cast<std::size_t>(attend.slots[n])];
    length = std::max(length, lengths[n]);
  }
  return places;
}

// Pages in random order, two of them unused.
Places pages_of(const Attend& attend, Random& random) {
  const std::vector<std::int64_t> lengths = attend.lengths();
  const auto width = static_cast<std::size_t>(attend.pages_of(attend.positions()));
  Places places{std::vector<std::int64_t>(lengths.size() * width, -1), {}, attend.page};
  std::int64_t count = 2;
  for (const std::int64_t length : lengths) count += attend.pages_of(length);
  std::vector<std::int64_t> order(static_cast<std::size_t>(count));
  std::iota(order.begin(), order.end(), std::int64_t{0});
  for (std::int64_t i = count - 1; i > 0; --i) {
    std::swap(order[static_cast<std::size_t>(i)], order[static_cast<std::size_t>(random.below(i + 1))]);
  }
  places.filled.assign(order.size(), 0);
  auto next = order.begin();
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    if (attend.is_absent(n)) continue;
    for (std::int64_t i = 0; i * attend.page < lengths[n]; ++i, ++next) {
      places.table[n * width + static_cast<std::size_t>(i)] = *next;
      places.filled[static_cast<std::size_t>(*next)] = std::min(attend.page, lengths[n] - i * attend.page);
    }
  }
  return places;
}

// Normal deviates, or the values of a table of them in turn.
Memory::Generator normals(Random& random, bool table, double deviation = 1.0) {
  if (!table) return [&random, deviation] { return deviation * random.normal(); };
  std::vector<double> values(65521);  // a prime: rows begin anywhere in it
  for (double& value : values) value = deviation * random.normal();
  return [values = std::move(values), i = std::size_t{0}]() mutable {
    if (++i == values.size()) i = 0;
    return values[i];
  };
}

Tensor make_cache(Memory& memory, const Attend& attend, const Places& places, Random& random, double deviation) {
  std::int64_t i = 0;
  const auto count = static_cast<std::int64_t>(places.filled.size());
  const Memory::Generator value = normals(random, attend.large, deviation);
  const std::vector<std::int64_t> sizes = {count, places.rows, attend.key_heads, attend.width};
  const auto next = [&] {
    const std::int64_t position = i++ / (attend.key_heads * attend.width);
    const bool live = position % places.rows < places.filled[static_cast<std::size_t>(position / places.rows)];
    return live ? value() : std::numeric_limits<double>::quiet_NaN();
  };
  return attend.cache_dtype == DType::kQ8_0 ? q8_0_input(memory, sizes, next)
                                            : memory.input(attend.cache_dtype, sizes, next);
}

// With 16-bit operands: the f32 class, plus twice what rounding q costs for these inputs (a kernel rounds it to the
// same bits), plus twice the error that rounding each weight causes on average. A single rounding is at most sqrt(3)
// times its average, and the errors of several are independent, so that twice holds for one weight and for many.
Bound bound_16bit(Bound f32, const reference::Array& exact, const reference::Array& rounded_q, double noise) {
  double squares = 0.0;
  for (const double value : exact.values) squares += value * value;
  const double l2 =
      f32.l2 + 2.0 * distance(exact, rounded_q).l2 + 2.0 * std::sqrt(noise / (squares > 0.0 ? squares : 1.0));
  return {l2, 4.0 * l2};
}

// All rows, or a sample of them with the first and the last, and the indices of their elements in the output.
Expected expect_rows(const AttentionArgs& args, std::int64_t sample, Bound bound) {
  const std::int64_t heads = args.q.dim(1);
  const std::int64_t width = args.q.dim(2);
  const std::int64_t all = args.q.dim(0) * heads;
  const std::int64_t rows = sample < 0 ? all : sample;
  const bool halves = args.k_cache.dtype != DType::kF32 || args.bf16_operands;
  const bool rounds_q = args.bf16_operands || (halves && args.q.dtype != args.k_cache.dtype);
  const reference::Attention oracle(args);
  reference::Array exact({rows, width});
  reference::Array rounded_q({rows, width});
  double noise = 0.0;
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < rows; ++i) {
    const std::int64_t row = sample > 1 ? i * (all - 1) / (rows - 1) : i;
    const auto copy = [&](Precision precision, reference::Array& to) {
      const std::vector<double> values = oracle.row(row / heads, row % heads, precision);
      std::copy(values.begin(), values.end(), to.values.begin() + i * width);
    };
    copy(Precision::kExact, exact);
    if (rounds_q) copy(Precision::k16Bit, rounded_q);
    if (halves) noise += oracle.weight_noise(row / heads, row % heads);
    if (sample >= 0) {
      for (std::int64_t d = 0; d < width; ++d) indices.push_back(row * width + d);
    }
  }
  reference::Array rounded = exact;
  reference::round_all(rounded, args.o.dtype, Precision::kRounded);
  Expected expected =
      expect("o", args.o, exact, rounded, bound, bound_16bit(bound, exact, rounds_q ? rounded_q : exact, noise));
  expected.indices = std::move(indices);
  return expected;
}

Cost attention_cost(const Attend& attend) {
  double visible = 0.0;  // (new token, cached token) pairs
  double cached = 0.0;
  const std::vector<std::int64_t> lengths = attend.lengths();
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    if (attend.is_absent(n)) continue;
    const auto fresh = static_cast<double>(attend.fresh[n]);
    const auto length = static_cast<double>(lengths[n]);
    visible += fresh * (length - fresh) + fresh * (fresh + 1.0) / 2.0;
    if (fresh > 0.0) cached += length;
  }
  const auto width = [](DType dtype) { return static_cast<double>(dtype_info(dtype).block_bytes); };
  const double query = static_cast<double>(attend.tokens() * attend.heads * attend.width);
  return {
      query * (width(attend.dtype) * (attend.gate ? 2.0 : 1.0) + width(attend.to_f32 ? DType::kF32 : attend.dtype)) +
          2.0 * cached * static_cast<double>(bytes_of(attend.cache_dtype, attend.key_heads * attend.width)),
      4.0 * visible * static_cast<double>(attend.heads * attend.width)};
}

Case attention_case(const Attend& attend) {
  return make_case<AttentionArgs>(attend.name(), [attend](OperationProblem<AttentionArgs>& problem, Random& random) {
    Memory& memory = problem.memory;
    memory.set_layout(attend.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
    const std::vector<std::int64_t> sizes = {attend.tokens(), attend.heads, attend.width};
    const Places places = attend.page > 0 ? pages_of(attend, random) : slots_of(attend);
    AttentionArgs& args = problem.args;
    args.q = memory.input(attend.dtype, sizes, normals(random, attend.large, attend.queries));
    args.k_cache = make_cache(memory, attend, places, random, 1.0);
    args.v_cache = make_cache(memory, attend, places, random, attend.values);
    args.cu_seqlens = cu_seqlens_of(memory, attend.fresh);
    args.lengths = integers(memory, attend.given_lengths());
    if (!attend.slots.empty()) args.slots = integers(memory, attend.slots);
    if (attend.page > 0) {
      const auto sequences = static_cast<std::int64_t>(attend.fresh.size());
      std::size_t i = 0;
      args.pages = memory.input(DType::kI32, {sequences, attend.pages_of(attend.positions())},
                                [&] { return static_cast<double>(places.table[i++]); });
    }
    if (attend.gate) args.gate = memory.input(attend.dtype, sizes, normals(random, attend.large, 2.0));
    args.o = memory.output(attend.to_f32 ? DType::kF32 : attend.dtype, sizes);
    args.scale = attend.scale;
    args.bf16_operands = attend.bf16_operands;
    const Bound bound = f32_bound(static_cast<double>(attend.width + attend.longest()));
    problem.find_expected = [bound, rows = attend.rows](const AttentionArgs& a) {
      return std::vector{expect_rows(a, rows, bound)};
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
  // Queries beyond the range of a cache of f16.
  list.push_back({.fresh = {5}, .before = {60}, .width = 64, .cache_dtype = f16, .scale = 1e-6F, .queries = 1e6});
  return list;
}

// Pages, and absent sequences.
std::vector<Attend> paged_shapes() {
  const DType bf16 = DType::kBF16;
  std::vector<Attend> list;
  for (const std::int64_t page : {1, 3, 16, 64, 100}) {
    list.push_back({.fresh = {1, 5, 70}, .before = {130, 64, 3}, .page = page});
  }
  list.push_back({.fresh = {3, 0, 2}, .before = {600, 0, 62}, .page = 48, .capacity = 1100, .gate = true});
  list.push_back({.fresh = {2, 1, 30}, .before = {5, 9, 70}, .page = 16, .absent = {1}, .gate = true});
  list.push_back({.fresh = {1, 1, 1}, .before = {5, 600, 9}, .page = 128, .absent = {0, 2}, .capacity = 1024});
  list.push_back({.fresh = {1, 1, 1, 2}, .before = {5, 0, 130, 9}, .slots = {3, -1, 1, -1}, .gate = true});
  list.push_back({.fresh = {1, 1}, .before = {5, 700}, .slots = {-1, 2}, .capacity = 800, .strided = true});
  list.push_back({.fresh = {9}, .slots = {-1}});
  for (const std::int64_t width : {64, 128, 256}) {
    list.push_back({.fresh = {40, 1, 1, 17},
                    .before = {200, 300, 4, 0},
                    .page = 16,
                    .absent = {2},
                    .heads = 8,
                    .width = width,
                    .dtype = bf16,
                    .cache_dtype = bf16,
                    .gate = true});
    list.push_back({.fresh = {1, 1, 1, 1},
                    .before = {700, 0, 4, 511},
                    .slots = {4, -1, 0, 1},
                    .capacity = 1024,
                    .heads = 16,
                    .width = width,
                    .dtype = bf16,
                    .cache_dtype = bf16,
                    .gate = true});
  }
  list.push_back({.fresh = {1, 3}, .before = {400, 90}, .page = 48, .heads = 8, .width = 128, .cache_dtype = bf16});
  return list;
}

// A prefill of t tokens, and two tokens after as many in a long cache.
void add_around_tiles(std::vector<Attend>& list, Attend shape, std::int64_t t) {
  shape.fresh = {t};
  list.push_back(shape);
  shape.fresh = {2};
  shape.before = {t};
  shape.capacity = 4096;
  list.push_back(shape);
}

// Head sizes and caches that kernels of matrix units take: tokens, lengths and groups around their tiles and splits.
std::vector<Attend> tiled_shapes() {
  const DType f32 = DType::kF32;
  const DType bf16 = DType::kBF16;
  std::vector<Attend> list;
  for (const DType cache : {DType::kF16, bf16}) {
    for (const std::int64_t width : {64, 128, 256}) {
      for (const std::int64_t ratio : {1, 2, 8}) {
        const Attend shape{.heads = 2 * ratio, .key_heads = 2, .width = width, .dtype = cache, .cache_dtype = cache};
        const auto add = [&](std::vector<std::int64_t> fresh, std::vector<std::int64_t> before, DType dtype) {
          Attend added = shape;
          added.fresh = std::move(fresh);
          added.before = std::move(before);
          added.dtype = dtype;
          added.gate = ratio == 8;
          list.push_back(added);
        };
        add({1}, {127}, cache);
        add({1, 1, 2}, {128, 640, 255}, ratio == 2 ? f32 : cache);
        add({65, 0, 16, 3}, {0, 7, 300, 61}, ratio == 1 ? f32 : cache);
      }
    }
  }
  // As a model on a CPU has them.
  for (const DType cache : {f32, DType::kF16, bf16, DType::kQ8_0}) {
    Attend shape{.heads = 4, .key_heads = 2, .width = 64, .cache_dtype = cache, .gate = true, .bf16_operands = true};
    shape.fresh = {65, 1, 40};
    shape.before = {3, 70, 200};
    list.push_back(shape);
    shape.width = 96;
    shape.fresh = {33};
    shape.before = {100};
    shape.page = 16;
    list.push_back(shape);
  }
  const Attend model{.heads = 16, .key_heads = 2, .width = 256, .dtype = bf16, .cache_dtype = bf16, .gate = true};
  for (const std::int64_t t : {15, 16, 17, 63, 64, 65, 129}) add_around_tiles(list, model, t);
  for (const std::int64_t length : {1023, 1024, 1025, 4096}) {
    Attend shape = model;
    shape.before = {length - 1};
    shape.capacity = 4096;
    shape.to_f32 = true;
    list.push_back(shape);
  }
  Attend shape = model;
  shape.fresh = {4, 1, 7};  // few tokens after long contexts of their own
  shape.before = {1500, 2000, 33};
  list.push_back(shape);
  shape.dtype = f32;
  shape.cache_dtype = DType::kF16;
  list.push_back(shape);
  for (const std::int64_t ratio : {3, 5, 16, 20, 48}) {  // groups that do not fill a tile, and too large ones
    list.push_back(
        {.fresh = {30, 1}, .before = {100, 200}, .heads = 2 * ratio, .width = 64, .dtype = bf16, .cache_dtype = bf16});
  }
  list.push_back({.fresh = {20}, .before = {20}, .width = 64, .dtype = bf16, .cache_dtype = bf16, .scale = 0.0F});
  list.push_back({.fresh = {20}, .before = {21}, .width = 64, .dtype = bf16, .cache_dtype = bf16, .scale = -0.3F});
  list.push_back({.fresh = {9}, .before = {300}, .width = 128, .dtype = bf16, .cache_dtype = bf16, .scale = 2.0F});
  return list;
}

// Caches of 8 bits: any head size of whole blocks, slots, pages, views, and the tiles of matrix units.
std::vector<Attend> packed_shapes() {
  const DType q8 = DType::kQ8_0;
  std::vector<Attend> list;
  for (const std::int64_t width : {32, 64, 96, 128, 256}) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      const Attend shape{.heads = 8, .width = width, .dtype = dtype, .cache_dtype = q8, .gate = true};
      const auto add = [&](std::vector<std::int64_t> fresh, std::vector<std::int64_t> before) {
        Attend added = shape;
        added.fresh = std::move(fresh);
        added.before = std::move(before);
        list.push_back(added);
      };
      add({1}, {130});
      add({1, 1, 2}, {128, 640, 255});
      add({65, 0, 16, 3}, {0, 7, 300, 61});
    }
  }
  const Attend model{.heads = 16, .key_heads = 2, .width = 256, .dtype = DType::kBF16, .cache_dtype = q8, .gate = true};
  for (const std::int64_t t : {15, 16, 17, 63, 64, 65, 129, 300}) add_around_tiles(list, model, t);
  for (const std::int64_t width : {64, 128, 256}) {
    list.push_back({.fresh = {40, 1, 1, 17},
                    .before = {200, 300, 4, 0},
                    .page = 16,
                    .absent = {2},
                    .heads = 8,
                    .width = width,
                    .dtype = DType::kBF16,
                    .cache_dtype = q8});
    list.push_back({.fresh = {1, 1, 1, 1},
                    .before = {700, 0, 4, 511},
                    .slots = {4, -1, 0, 1},
                    .capacity = 1024,
                    .heads = 16,
                    .width = width,
                    .dtype = DType::kBF16,
                    .cache_dtype = q8});
    list.push_back(
        {.fresh = {35, 2}, .before = {90, 400}, .width = width, .cache_dtype = q8, .gate = true, .strided = true});
  }
  list.push_back({.fresh = {2, 40}, .before = {70, 9}, .heads = 80, .width = 64, .cache_dtype = q8});
  list.push_back({.fresh = {20}, .before = {22}, .width = 64, .cache_dtype = q8, .values = 1e4});
  list.push_back({.fresh = {5}, .before = {60}, .width = 64, .cache_dtype = q8, .scale = 1e-6F, .queries = 1e6});
  list.push_back({.fresh = {9}, .before = {300}, .width = 128, .cache_dtype = q8, .scale = 2.0F});
  list.push_back({.fresh = {20}, .before = {21}, .width = 64, .cache_dtype = q8, .scale = -0.3F});
  return list;
}

// The attention of a model of 35 billion weights: prefill, and decode of batches over long contexts.
std::vector<Attend> large_shapes() {
  Attend model{.heads = 16, .key_heads = 2, .width = 256, .dtype = DType::kBF16, .cache_dtype = DType::kBF16};
  model.gate = true;
  model.rows = 32;
  model.large = true;
  std::vector<Attend> list;
  for (const std::int64_t tokens : {2048, 8192, 32768}) {
    model.fresh = {tokens};
    list.push_back(model);
  }
  for (const std::int64_t context : {8192, 32768}) {
    for (const int batch : {1, 8, 32, 64}) {
      model.fresh.assign(static_cast<std::size_t>(batch), 1);
      model.before.assign(static_cast<std::size_t>(batch), context - 1);
      list.push_back(model);
    }
  }
  // The same over a cache of 8 bits.
  for (std::size_t i = 0, count = list.size(); i < count; ++i) {
    list.push_back(list[i]);
    list.back().cache_dtype = DType::kQ8_0;
  }
  return list;
}

}  // namespace

void add_attention_cases(std::vector<Case>& cases) {
  for (const auto& list : {shapes(), paged_shapes(), tiled_shapes(), packed_shapes()}) {
    for (const Attend& attend : list) cases.push_back(attention_case(attend));
  }
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
  for (const Attend& attend : large_shapes()) cases.push_back(large_case(attention_case(attend)));
}

}  // namespace thalweg::cases
