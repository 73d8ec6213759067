// Cases of the operations that move rows: store_kv, split_qkvz. Their results are exact to the bit.

#include <cmath>
#include <numeric>
#include <utility>

#include "cases/nn.h"
#include "reference/nn.h"

namespace thalweg::cases {
namespace {

struct Store {
  std::vector<std::int64_t> fresh = {1};  // new tokens of each sequence
  std::vector<std::int64_t> before = {};  // tokens cached before them; none without
  std::vector<std::int64_t> slots = {};   // in a cache of two more slots than sequences; -1: absent
  std::vector<std::int64_t> pages = {};   // [N,P] of a cache of three more pages than are listed; instead of slots
  std::int64_t capacity = 12;             // S
  std::int64_t heads = 2;
  std::int64_t width = 32;
  DType dtype = DType::kF32;
  DType cache_dtype = DType::kF16;
  bool strided = false;

  std::int64_t tokens() const { return std::accumulate(fresh.begin(), fresh.end(), std::int64_t{0}); }

  std::string name() const {
    std::string text = "new" + list_name(fresh);
    if (!before.empty()) text += "_after" + list_name(before);
    if (!slots.empty()) text += "_slots" + list_name(slots);
    if (!pages.empty()) text += "_pages" + list_name(pages);
    text += "_S" + std::to_string(capacity) + "_H" + std::to_string(heads) + "_D" + std::to_string(width) + "_" +
            std::string(dtype_name(dtype)) + "_cache" + std::string(dtype_name(cache_dtype));
    if (strided) text += "_strided";
    return text;
  }
};

// Half a scale: 1/254 of a block's largest value, times the rounding of the scale to f16. In a block of 32 whose norm
// is its largest value alone, all values can have that error.
Expected expect_8bit(std::string name, const ConstTensor& cache, const reference::Array& exact) {
  constexpr double kLargest = (1.0 + 0x1p-11) / 254.0 + 0x1p-20;
  return {std::move(name), cache, exact.values, {std::sqrt(32.0) * kLargest, kLargest}};
}

Case store_case(const Store& store) {
  return make_case<StoreKvArgs>(store.name(), [store](OperationProblem<StoreKvArgs>& problem, Random& random) {
    Memory& memory = problem.memory;
    memory.set_layout(store.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
    const auto normal = [&] { return random.normal(); };
    const std::vector<std::int64_t> rows = {store.tokens(), store.heads, store.width};
    const auto sequences = static_cast<std::int64_t>(store.fresh.size());
    const auto pages = static_cast<std::int64_t>(store.pages.size());
    const std::int64_t places = pages > 0 ? pages + 3 : store.slots.empty() ? sequences : sequences + 2;
    const std::vector<std::int64_t> cache = {places, store.capacity, store.heads, store.width};
    std::vector<std::int64_t> lengths = store.fresh;
    for (std::size_t n = 0; n < store.before.size(); ++n) lengths[n] += store.before[n];
    StoreKvArgs& args = problem.args;
    args.k = memory.input(store.dtype, rows, normal);
    args.v = memory.input(store.dtype, rows, normal);
    args.cu_seqlens = cu_seqlens_of(memory, store.fresh);
    args.lengths = integers(memory, lengths);
    if (!store.slots.empty()) args.slots = integers(memory, store.slots);
    if (pages > 0) {
      std::size_t i = 0;
      args.pages = memory.input(DType::kI32, {sequences, pages / sequences},
                                [&] { return static_cast<double>(store.pages[i++]); });
    }
    const auto make_cache = [&] {
      return store.cache_dtype == DType::kQ8_0 ? memory.also_output(q8_0_input(memory, cache, normal))
                                               : memory.in_out(store.cache_dtype, cache, normal);
    };
    args.k_cache = make_cache();
    args.v_cache = make_cache();
    problem.find_expected = [](const StoreKvArgs& a) {
      const reference::Caches caches = reference::store_kv(a, reference::Precision::kRounded);
      std::vector<Expected> expected = {expect_equal("k_cache", a.k_cache, caches.k),
                                        expect_equal("v_cache", a.v_cache, caches.v)};
      if (a.k_cache.dtype == DType::kQ8_0) {
        const reference::Caches exact = reference::store_kv(a, reference::Precision::kExact);
        expected.push_back(expect_8bit("k_cache's error", a.k_cache, exact.k));
        expected.push_back(expect_8bit("v_cache's error", a.v_cache, exact.v));
      }
      return expected;
    };
    const std::int64_t count = 2 * store.tokens() * store.heads * store.width;
    problem.cost = {static_cast<double>(bytes_of(store.dtype, count) + bytes_of(store.cache_dtype, count)), 0.0};
  });
}

struct Split {
  std::int64_t tokens = 5;
  std::int64_t heads = 3;
  std::int64_t key = 16;     // K
  std::int64_t values = 48;  // R*V
  DType dtype = DType::kF32;
  bool strided = false;

  std::string name() const {
    return "T" + std::to_string(tokens) + "_H" + std::to_string(heads) + "_K" + std::to_string(key) + "_RV" +
           std::to_string(values) + "_" + std::string(dtype_name(dtype)) + (strided ? "_strided" : "");
  }
};

Case split_case(const Split& split) {
  return make_case<SplitQkvzArgs>(split.name(), [split](OperationProblem<SplitQkvzArgs>& problem, Random& random) {
    Memory& memory = problem.memory;
    memory.set_layout(split.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
    const std::int64_t width = 2 * split.key + 2 * split.values;
    SplitQkvzArgs& args = problem.args;
    args.x = memory.input(split.dtype, {split.tokens, split.heads, width}, [&] { return random.normal(); });
    args.q = memory.output(split.dtype, {split.tokens, split.heads, split.key});
    args.k = memory.output(split.dtype, {split.tokens, split.heads, split.key});
    args.v = memory.output(split.dtype, {split.tokens, split.heads, split.values});
    args.z = memory.output(split.dtype, {split.tokens, split.heads, split.values});
    problem.find_expected = [](const SplitQkvzArgs& a) {
      const reference::Qkvz exact = reference::split_qkvz(a);
      return std::vector{expect_equal("q", a.q, exact.q), expect_equal("k", a.k, exact.k),
                         expect_equal("v", a.v, exact.v), expect_equal("z", a.z, exact.z)};
    };
    problem.cost = {2.0 * static_cast<double>(bytes_of(split.dtype, split.tokens * split.heads * width)), 0.0};
  });
}

}  // namespace

void add_move_cases(std::vector<Case>& cases) {
  const DType types[] = {DType::kF32, DType::kF16, DType::kBF16};
  std::vector<Store> stores;
  for (const DType dtype : types) {
    for (const DType cache : types) {
      stores.push_back({.fresh = {3}, .before = {2}, .width = 37, .dtype = dtype, .cache_dtype = cache});
    }
  }
  stores.push_back({.fresh = {}});
  stores.push_back({.fresh = {0}});
  stores.push_back({.fresh = {12}});  // all of the cache
  stores.push_back({.fresh = {0, 1}, .before = {12, 11}});
  stores.push_back({.fresh = {2, 0, 5, 1}, .before = {10, 3, 0, 4}, .slots = {5, 0, 2, 1}});
  stores.push_back({.fresh = {1, 1}, .before = {4, 9}, .slots = {3, 0}, .heads = 1, .width = 256, .strided = true});
  stores.push_back({.fresh = {70}, .before = {1}, .capacity = 100, .width = 1, .strided = true});
  // Absent sequences, whose lengths mean nothing; pages, the last entries of which are not read.
  stores.push_back({.fresh = {1, 1, 2, 3}, .before = {4, 900, 3, -70}, .slots = {3, -1, 0, -1}});
  stores.push_back({.fresh = {4, 1, 3}, .before = {10, 7, 0}, .pages = {5, 1, -1, 0, 7, -1, 3, -1, -1}, .capacity = 7});
  stores.push_back({.fresh = {20, 1}, .pages = {0, 4, 2, 6, -1, 9, 9, 9}, .capacity = 5, .dtype = DType::kBF16});
  stores.push_back({.fresh = {2, 1, 2},
                    .before = {14, 10000, 30},
                    .pages = {5, 1, 0, 2, -1, -1, -1, -1, 3, 6, 11, -1},
                    .capacity = 16,
                    .width = 256,
                    .dtype = DType::kBF16,
                    .cache_dtype = DType::kBF16});
  stores.push_back({.fresh = {3, 9}, .before = {3, 1}, .pages = {1, 4, 2, 5, 6, 0}, .capacity = 4, .strided = true});
  for (const DType dtype : types) {
    stores.push_back({.fresh = {3, 1}, .before = {2, 7}, .dtype = dtype, .cache_dtype = DType::kQ8_0});
    stores.push_back({.fresh = {2, 0, 5, 1},
                      .before = {10, 3, 0, 4},
                      .slots = {5, 0, -1, 1},
                      .heads = 3,
                      .width = 96,
                      .dtype = dtype,
                      .cache_dtype = DType::kQ8_0,
                      .strided = true});
    stores.push_back({.fresh = {2, 1, 2},
                      .before = {14, 10000, 30},
                      .pages = {5, 1, 0, 2, -1, -1, -1, -1, 3, 6, 11, -1},
                      .capacity = 16,
                      .width = 256,
                      .dtype = dtype,
                      .cache_dtype = DType::kQ8_0});
  }
  for (const Store& store : stores) cases.push_back(store_case(store));
  cases.push_back(bench_case(store_case({.fresh = {512}, .before = {512}, .capacity = 1024, .width = 256})));

  for (const DType dtype : types) {
    cases.push_back(split_case({.dtype = dtype}));
    cases.push_back(split_case({.tokens = 17, .key = 7, .values = 5, .dtype = dtype, .strided = true}));
  }
  for (const std::int64_t t : {0, 1, 65}) cases.push_back(split_case({.tokens = t, .heads = 1}));
  cases.push_back(split_case({.heads = 0}));
  cases.push_back(split_case({.key = 8, .values = 8}));
  cases.push_back(bench_case(split_case({.tokens = 512, .heads = 16, .key = 128, .values = 256})));
}

}  // namespace thalweg::cases
