// `thalweg bench --suite experts`: mul_mat_id on a GPU over the shapes of published models, block formats and numbers
// of tokens, with experts drawn uniformly and by Zipf's law.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <regex>
#include <set>

#include "bench_check.h"
#include "cases/random.h"
#include "commands.h"
#include "core/device_functions.h"
#include "device_fill.h"
#include "ops/backends.h"
#include "output_file.h"
#include "streams.h"
#include "thalweg/moe.h"

namespace thalweg::app {
namespace {

struct Shape {
  std::int64_t experts, slots, n, k;

  std::string name() const { return fmt::format("E{}_S{}_N{}_K{}", experts, slots, n, k); }
  std::int64_t weight_bytes(DType type) const { return experts * bytes_of(type, n * k); }
};

struct Row {
  Shape shape{};
  DType type = DType::kQ4_K;
  std::int64_t tokens = 1;
  bool zipf = false;
  double bar_us = 0.0;   // what it should take at most; 0: nothing set
  double ggml_us = 0.0;  // published; 0: nothing

  std::string name() const {
    return fmt::format("{}_{}_M{}{}", shape.name(), dtype_name(type), tokens, zipf ? "_zipf" : "");
  }
};

constexpr std::int64_t kTokens[] = {1, 8, 32, 128, 256, 512, 2048, 8192};
constexpr std::size_t kColumns = std::size(kTokens);

// Bars and ggml's times by tokens; 0: none.
struct Published {
  Shape shape;
  DType type;
  double bars[kColumns];
  double ggml[kColumns];
};
constexpr Published kPublished[] = {
    {{128, 8, 2048, 4096}, DType::kQ4_K, {14, 0, 200, 0, 280}, {21.8, 0, 581, 0, 1550}},
    {{128, 8, 2048, 4096}, DType::kF16, {45, 0, 500, 0, 560}, {45.9, 0, 514, 0, 2258}},
    {{256, 8, 512, 2048}, DType::kQ4_K, {6, 12, 50, 75, 0, 100, 190, 450}, {8.4, 18.4, 128, 403, 0, 452, 634, 1987}},
    {{256, 8, 2048, 512}, DType::kQ4_K, {6, 12, 50, 75, 0, 110, 220, 500}, {9.8, 23.6, 147, 440, 0, 537, 968, 3418}},
    {{256, 8, 512, 2048}, DType::kQ8_0, {}, {9.3, 24.6, 145, 371, 0, 408, 628, 1948}},
    {{256, 8, 2048, 512}, DType::kQ8_0, {}, {9.5, 32.7, 159, 399, 0, 505, 1028, 3466}},
};
constexpr double kSkewAllowance = 1.5;  // of a bar, for experts drawn by Zipf's law

const Published* find_published(const Shape& shape, DType type) {
  for (const Published& row : kPublished) {
    if (row.type == type && row.shape.name() == shape.name()) return &row;
  }
  return nullptr;
}

double ggml_us(const Shape& shape, DType type, std::size_t column) {
  const Published* row = find_published(shape, type);
  return row != nullptr ? row->ggml[column] : 0.0;
}

// A block format without a bar of its own may take as many times what reading its weights takes as Q4_K.
double bar(const Shape& shape, DType type, std::size_t column) {
  const bool like_q4_k = is_block_format(type);
  const Published* row = find_published(shape, like_q4_k ? DType::kQ4_K : type);
  if (row == nullptr) return 0.0;
  const double bytes = static_cast<double>(shape.weight_bytes(type));
  return row->bars[column] * (like_q4_k ? bytes / static_cast<double>(shape.weight_bytes(DType::kQ4_K)) : 1.0);
}

std::vector<Row> all_rows(const std::vector<DType>& types) {
  constexpr Shape kShapes[] = {{128, 8, 2048, 4096}, {256, 8, 512, 2048}, {256, 8, 2048, 512}};
  std::vector<Row> rows;
  for (const Shape& shape : kShapes) {
    for (const DType type : types) {
      for (const bool zipf : {false, true}) {
        for (std::size_t i = 0; i < kColumns; ++i) {
          Row row{shape, type, kTokens[i], zipf};
          row.bar_us = bar(shape, type, i) * (zipf ? kSkewAllowance : 1.0);
          if (!zipf) row.ggml_us = ggml_us(shape, type, i);
          rows.push_back(row);
        }
      }
    }
  }
  return rows;
}

// Each token's experts differ from each other.
std::vector<std::int32_t> draw_experts(const Row& row, cases::Random& random) {
  const auto experts = static_cast<std::size_t>(row.shape.experts);
  std::vector<std::size_t> order(experts);  // the rank of each expert, if some are likelier
  for (std::size_t i = 0; i < experts; ++i) order[i] = i;
  for (std::size_t i = experts - 1; i > 0; --i) {
    std::swap(order[i], order[static_cast<std::size_t>(random.below(static_cast<std::int64_t>(i) + 1))]);
  }
  std::vector<std::int32_t> ids;
  std::vector<std::pair<double, std::size_t>> keys(experts);
  for (std::int64_t token = 0; token < row.tokens; ++token) {
    // The largest of log(uniform) / weight: drawing without replacement by weights.
    for (std::size_t e = 0; e < experts; ++e) {
      const double weight = row.zipf ? 1.0 / static_cast<double>(order[e] + 1) : 1.0;
      keys[e] = {std::log(1.0 - random.uniform()) / weight, e};
    }
    std::partial_sort(keys.begin(), keys.begin() + row.shape.slots, keys.end(), std::greater<>());
    for (std::int64_t s = 0; s < row.shape.slots; ++s) {
      ids.push_back(static_cast<std::int32_t>(keys[static_cast<std::size_t>(s)].second));
    }
  }
  return ids;
}

// Weights of one shape and type. A row's runs rotate over copies of them, with other experts each time, so that they do
// not find them in the cache.
class Weights {
 public:
  Weights(const Stream& stream, const Shape& shape, DType type)
      : stream_(stream),
        shape_(shape),
        type_(type),
        copies_((kRotatedBytes + shape.weight_bytes(type) - 1) / shape.weight_bytes(type)),
        memory_(repeated_blocks(stream, type, copies_ * shape.weight_bytes(type))) {}

  bool fit(const Row& row) const { return row.shape.name() == shape_.name() && row.type == type_; }
  ConstTensor copy(std::int64_t i) const {
    return {static_cast<const char*>(memory_.data()) + i % copies_ * shape_.weight_bytes(type_),
            type_,
            {shape_.experts, shape_.n, shape_.k},
            stream_.device};
  }

 private:
  static constexpr std::int64_t kRotatedBytes = std::int64_t{1} << 30U;

  Stream stream_;
  Shape shape_;
  DType type_;
  std::int64_t copies_;
  DeviceMemory memory_;
};

// The runs of a row, and how many experts they hit.
class Runs {
 public:
  Runs(const Stream& stream, const Row& row, const Weights& weights)
      : x_(stream.device, static_cast<std::size_t>(row.tokens * row.shape.k * 4)),
        y_(stream.device, static_cast<std::size_t>(row.tokens * row.shape.slots * row.shape.n * 4)),
        ids_(stream.device, static_cast<std::size_t>(kCopies * row.tokens * row.shape.slots * 4)) {
    cases::Random random(3);
    std::vector<float> x(static_cast<std::size_t>(row.tokens * row.shape.k));
    for (float& value : x) value = static_cast<float>(random.uniform(-1.7, 1.7));
    copy_to_device(stream, x_.data(), x.data(), 4 * x.size());
    const std::int64_t pairs = row.tokens * row.shape.slots;
    for (std::int64_t i = 0; i < kCopies; ++i) {
      const std::vector<std::int32_t> ids = draw_experts(row, random);
      hits_ += static_cast<double>(std::set<std::int32_t>(ids.begin(), ids.end()).size()) / kCopies;
      auto* to = static_cast<std::int32_t*>(ids_.data()) + i * pairs;
      copy_to_device(stream, to, ids.data(), 4 * ids.size());
      MulMatIdArgs args;
      args.weight = weights.copy(i);
      args.x = ConstTensor(x_.data(), DType::kF32, {row.tokens, row.shape.k}, stream.device);
      args.expert_ids = ConstTensor(to, DType::kI32, {row.tokens, row.shape.slots}, stream.device);
      args.y = Tensor(y_.data(), DType::kF32, {row.tokens, row.shape.slots, row.shape.n}, stream.device);
      args.precision = MatmulPrecision::kFast;
      args_.push_back(args);
    }
  }

  const std::vector<MulMatIdArgs>& args() const { return args_; }
  double hits() const { return hits_; }

 private:
  static constexpr std::int64_t kCopies = 8;
  DeviceMemory x_, y_, ids_;
  std::vector<MulMatIdArgs> args_;
  double hits_ = 0.0;
};

// Runs one call and compares some rows of some (token, slot) pairs with the oracle. Empty if they are right.
std::string check(const Stream& stream, const MulMatIdArgs& args) {
  constexpr std::int64_t kPairs = 16;
  constexpr std::int64_t kRows = 16;  // of a pair's expert, one after the other
  cases::Random random(13);
  const std::int64_t slots = args.expert_ids.dim(1);
  const std::int64_t n = args.weight.dim(1);
  const std::int64_t k = args.weight.dim(2);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(args.expert_ids.size()));
  copy_to_host(stream, ids.data(), args.expert_ids.data, ids.size() * sizeof(std::int32_t));
  // Each pair becomes a token of its own, and its rows an expert.
  const std::int64_t row_bytes = bytes_of(args.weight.dtype, k);
  std::vector<unsigned char> weight(static_cast<std::size_t>(kPairs * kRows * row_bytes));
  std::vector<float> x(static_cast<std::size_t>(kPairs * k));
  std::vector<float> y(static_cast<std::size_t>(kPairs * kRows));
  std::vector<std::int32_t> experts(static_cast<std::size_t>(kPairs));
  std::vector<Tensor> outputs;
  for (std::int64_t i = 0; i < kPairs; ++i) {
    const std::int64_t pair = i == 0 ? std::ssize(ids) - 1 : random.below(std::ssize(ids));
    const std::int64_t first = i == 0 ? n - kRows : random.below(n - kRows + 1);
    const std::int32_t expert = ids[static_cast<std::size_t>(pair)];
    copy_to_host(stream, weight.data() + i * kRows * row_bytes, args.weight.row(expert, first),
                 static_cast<std::size_t>(kRows * row_bytes));
    copy_to_host(stream, x.data() + i * k, args.x.row(pair / slots), static_cast<std::size_t>(k) * sizeof(float));
    experts[static_cast<std::size_t>(i)] = static_cast<std::int32_t>(i);
    auto* row = static_cast<float*>(args.y.row(pair / slots, pair % slots)) + first;
    outputs.emplace_back(row, DType::kF32, std::initializer_list<std::int64_t>{kRows}, stream.device);
    fill_with_nan(stream, outputs.back());
  }
  const DeviceMemory workspace(stream.device, workspace_size(args, stream));
  run(args, workspace.workspace(), stream);
  synchronize(stream);
  float* to = y.data();
  for (const Tensor& output : outputs) {
    copy_to_host(stream, to, output.data, kRows * sizeof(float));
    to += kRows;
  }
  MulMatIdArgs sample;
  sample.weight = ConstTensor(weight.data(), args.weight.dtype, {kPairs, kRows, k}, kCpu);
  sample.x = ConstTensor(x.data(), DType::kF32, {kPairs, k}, kCpu);
  sample.expert_ids = ConstTensor(experts.data(), DType::kI32, {kPairs, 1}, kCpu);
  sample.y = Tensor(y.data(), DType::kF32, {kPairs, 1, kRows}, kCpu);
  sample.precision = args.precision;
  return find_error(expect_experts(sample), arithmetic_of(explain(args, stream)));
}

// Seconds of one run: the median over replays of a graph of runs over the first `copies`.
double measure(const DeviceFunctions& functions, const Stream& stream, const std::vector<MulMatIdArgs>& args,
               std::size_t copies) {
  const DeviceMemory workspace(stream.device, workspace_size(args[0], stream));
  const auto timed = [&](std::size_t launches, int replays) {
    const auto enqueue = [&](const Stream& to) {
      for (std::size_t i = 0; i < launches; ++i) run(args[i % copies], workspace.workspace(), to);
    };
    std::vector<double> seconds = functions.time(stream.device, enqueue, replays);
    std::sort(seconds.begin(), seconds.end());
    return seconds[seconds.size() / 2] / static_cast<double>(launches);
  };
  const double once = timed(args.size(), 3);
  return once < 50e-6 ? timed(104, 7) : timed(args.size(), 7);
}

std::vector<DType> types_of(const std::vector<std::string>& names) {
  std::vector<DType> types;
  for (const std::string& name : names) {
    for (int i = 0; i < kNumDTypes; ++i) {
      if (dtype_name(static_cast<DType>(i)) == name) types.push_back(static_cast<DType>(i));
    }
  }
  if (types.size() != names.size()) throw std::runtime_error("--types takes names as Q4_K or F16, with commas between");
  return types;
}

}  // namespace

int bench_experts(const BenchOptions& options, const BackendInfo& backend_info) {
  const Stream stream{{backend_info.type, 0}, 0, nullptr};
  const DeviceFunctions& functions = *backend(backend_info.type).device;
  std::vector<Row> rows = all_rows(types_of(options.types));
  const std::regex pattern(options.selection.case_regex);
  std::erase_if(rows, [&](const Row& row) { return !std::regex_search(row.name(), pattern); });
  if (rows.empty()) throw std::runtime_error("no row of the suite matches '" + options.selection.case_regex + "'");
  const double bandwidth = functions.speed(stream.device).bytes_per_second;
  print("mul_mat_id, f32 activations and results; a copy reaches {:.2f} TB/s, measured now\n", bandwidth * 1e-12);
  print("floor: the weights of the experts that are hit, at that rate; warm: the same weights again\n\n");
  print("{:<36} {:<10} {:>6} {:>9} {:>9} {:>9} {:>8} {:>8} {:>8} {:>8} {:>8}\n", "shape", "kernel", "hits", "us",
        "warm us", "floor us", "x floor", "TFLOP/s", "bar us", "x bar", "ggml us");
  std::string csv = "shape,kernel,hits,us,warm_us,floor_us,bar_us,ggml_us\n";
  std::unique_ptr<Weights> weights;
  bool failed = false;
  for (const Row& row : rows) {
    if (weights == nullptr || !weights->fit(row)) {
      weights.reset();  // before the next are made
      weights = std::make_unique<Weights>(stream, row.shape, row.type);
    }
    const Runs runs(stream, row, *weights);
    const Explanation explanation = explain(runs.args()[0], stream);
    const double floor = runs.hits() * static_cast<double>(bytes_of(row.type, row.shape.n * row.shape.k)) / bandwidth;
    const double flops = 2.0 * static_cast<double>(row.tokens * row.shape.slots * row.shape.n * row.shape.k);
    for (std::size_t i = 0; i < explanation.kernels.size(); ++i) {
      const KernelVerdict& kernel = explanation.kernels[i];
      const bool wanted = options.all_kernels || static_cast<int>(i) == explanation.chosen;
      if (!kernel.supported || !wanted) continue;
      select_kernel(explanation.operation, kernel.kernel);
      const std::string error = options.check ? check(stream, runs.args().back()) : "";
      if (!error.empty()) {
        failed = true;
        select_kernel(explanation.operation, "");
        print("{:<36} {:<10} wrong result, not timed: {}\n", row.name(), kernel.kernel, error);
        continue;
      }
      const double seconds = measure(functions, stream, runs.args(), runs.args().size());
      const double warm = measure(functions, stream, runs.args(), 1);
      select_kernel(explanation.operation, "");
      const auto optional = [](double value, int digits) {
        return value > 0.0 ? fmt::format("{:.{}f}", value, digits) : "";
      };
      print("{:<36} {:<10} {:>6.1f} {:>9.2f} {:>9.2f} {:>9.2f} {:>8.2f} {:>8.1f} {:>8} {:>8} {:>8}\n", row.name(),
            kernel.kernel, runs.hits(), 1e6 * seconds, 1e6 * warm, 1e6 * floor, seconds / floor,
            flops / seconds * 1e-12, optional(row.bar_us, 1),
            row.bar_us > 0.0 ? fmt::format("{:.2f}", 1e6 * seconds / row.bar_us) : "", optional(row.ggml_us, 1));
      std::fflush(stdout);
      csv += fmt::format("{},{},{:.1f},{:.3f},{:.3f},{:.3f},{},{}\n", row.name(), kernel.kernel, runs.hits(),
                         1e6 * seconds, 1e6 * warm, 1e6 * floor, optional(row.bar_us, 1), optional(row.ggml_us, 1));
    }
  }
  if (!options.csv.empty()) write_text(options.csv, csv);
  return failed ? 1 : 0;
}

}  // namespace thalweg::app
