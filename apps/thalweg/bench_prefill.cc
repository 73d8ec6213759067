// `thalweg bench --suite published`, `short` and `widths`: prefill of the gated delta rule over the shapes for which
// FlashQLA's authors published the times of their kernels, of FlashInfer's and of FLA's on an H200.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <numeric>
#include <optional>
#include <regex>
#include <sstream>

#include "bench_check.h"
#include "cases/random.h"
#include "commands.h"
#include "core/device_functions.h"
#include "core/float16.h"
#include "device_fill.h"
#include "ops/backends.h"
#include "output_file.h"
#include "prefill_suites.h"
#include "progress.h"
#include "streams.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg::app {
namespace {

constexpr std::int64_t kMostHead = 256;  // K and V
// What one H200 reaches (docs/performance.md): the floors of the table.
constexpr double kBytesPerSecond = 4.3e12;
constexpr double kFlopsPerSecond = 790e12;
// Per token and value head, in chunks of 64.
constexpr double flops_per_token(double head) { return 6.0 * head * head + 482.0 * head; }

struct Row {
  std::string model;
  std::string name;  // "1x32768", "8192x4", "4096+28672"
  std::vector<std::int64_t> lengths;
  std::int64_t hk = 0;
  std::int64_t hv = 0;
  std::vector<double> published_ms;  // FlashQLA, FlashInfer, FLA; empty in other suites
  std::int64_t head = 128;           // K and V

  std::int64_t tokens() const { return std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}); }
  std::int64_t first_token(std::int64_t sequence) const {
    return std::accumulate(lengths.begin(), lengths.begin() + sequence, std::int64_t{0});
  }
  double bytes() const {
    return static_cast<double>(tokens()) * static_cast<double>((2 * hk + 2 * hv) * head * 2 + 8 * hv);
  }
  double floor_ms() const {
    const double flops = static_cast<double>(tokens() * hv) * flops_per_token(static_cast<double>(head));
    return 1e3 * std::max(bytes() / kBytesPerSecond, flops / kFlopsPerSecond);
  }
};

// "1x32768" is one sequence, "8192x4" four of 8192, "a+b" two.
std::vector<std::int64_t> parse_lengths(const std::string& text) {
  std::vector<std::int64_t> lengths;
  std::istringstream terms(text);
  std::string term;
  while (std::getline(terms, term, '+')) {
    const std::size_t cross = term.find('x');
    if (cross == std::string::npos) {
      lengths.push_back(std::stoll(term));
      continue;
    }
    const std::int64_t a = std::stoll(term.substr(0, cross));
    const std::int64_t b = std::stoll(term.substr(cross + 1));
    lengths.insert(lengths.end(), static_cast<std::size_t>(std::min(a, b)), std::max(a, b));
  }
  return lengths;
}

std::vector<Row> published_rows() {
  std::vector<Row> rows;
  std::istringstream lines{std::string(kPublishedPrefill)};
  std::string line;
  std::getline(lines, line);  // the names of the columns
  while (std::getline(lines, line)) {
    std::vector<std::string> fields;
    std::istringstream columns(line);
    std::string field;
    while (std::getline(columns, field, ',')) fields.push_back(field);
    if (fields.size() != 7) continue;
    rows.push_back({fields[0],
                    fields[1],
                    parse_lengths(fields[1]),
                    std::stoll(fields[2]),
                    std::stoll(fields[3]),
                    {std::stod(fields[4]), std::stod(fields[5]), std::stod(fields[6])}});
  }
  return rows;
}

std::vector<Row> short_rows() {
  std::vector<Row> rows;
  for (const std::int64_t tokens : {1, 8, 16, 32, 64, 128, 256, 512, 1024}) {
    rows.push_back({"35B/9B/4B TP1", "1x" + std::to_string(tokens), {tokens}, 16, 32, {}});
  }
  return rows;
}

// Every width that the tensor cores' kernels have.
std::vector<Row> width_rows() {
  std::vector<Row> rows;
  for (const std::int64_t head : {64, 128, 256}) {
    for (const char* name : {"1x512", "1x4096", "1x8192", "2048x4"}) {
      rows.push_back({"K = V = " + std::to_string(head), name, parse_lengths(name), 16, 32, {}, head});
    }
  }
  return rows;
}

// Inputs as the published table has them, for any row of one width: q and k of norm 1, v normal, gates near 0 with a
// quarter of the heads at 0, beta a sigmoid of a normal, normal initial state.
class Inputs {
 public:
  Inputs(const Stream& stream, const std::vector<Row>& rows, int copies) : stream_(stream), copies_(copies) {
    std::int64_t keys = 0;
    std::int64_t values = 0;
    std::int64_t gates = 0;
    std::int64_t states = 0;
    for (const Row& row : rows) {
      keys = std::max(keys, row.tokens() * row.hk * row.head);
      values = std::max(values, row.tokens() * row.hv * row.head);
      gates = std::max(gates, row.tokens() * row.hv);
      states = std::max(states, static_cast<std::int64_t>(row.lengths.size()) * row.hv * row.head * row.head);
    }
    draw_values(rows[0].head);
    for (int i = 0; i < copies; ++i) {
      q_.push_back(repeated(stream, unit_, keys));
      k_.push_back(repeated(stream, unit_, keys));
      v_.push_back(repeated(stream, normal_, values));
      g_.push_back(repeated(stream, gate_values_, gates));
      beta_.push_back(repeated(stream, beta_values_, gates));
      initial_.push_back(repeated(stream, normal_f32_, states));
      final_.emplace_back(stream.device, static_cast<std::size_t>(states) * sizeof(float));
      o_.emplace_back(stream.device, static_cast<std::size_t>(values) * sizeof(std::uint16_t));
    }
  }

  // The row's arguments on one of the copies.
  ChunkGatedDeltaRuleArgs arguments(const Row& row, int copy) {
    std::vector<std::int32_t> bounds = {0};
    for (const std::int64_t length : row.lengths) bounds.push_back(bounds.back() + static_cast<std::int32_t>(length));
    cu_seqlens_ = DeviceMemory(stream_.device, bounds.size() * sizeof(std::int32_t));
    copy_to_device(stream_, cu_seqlens_.data(), bounds.data(), cu_seqlens_.bytes());
    const auto i = static_cast<std::size_t>(copy);
    const Device device = stream_.device;
    const std::int64_t t = row.tokens();
    const auto n = static_cast<std::int64_t>(row.lengths.size());
    ChunkGatedDeltaRuleArgs args;
    args.q = ConstTensor(q_[i].data(), DType::kBF16, {1, t, row.hk, row.head}, device);
    args.k = ConstTensor(k_[i].data(), DType::kBF16, {1, t, row.hk, row.head}, device);
    args.v = ConstTensor(v_[i].data(), DType::kBF16, {1, t, row.hv, row.head}, device);
    args.g = ConstTensor(g_[i].data(), DType::kF32, {1, t, row.hv}, device);
    args.beta = ConstTensor(beta_[i].data(), DType::kF32, {1, t, row.hv}, device);
    args.initial_state = ConstTensor(initial_[i].data(), DType::kF32, {n, row.hv, row.head, row.head}, device);
    args.final_state = Tensor(final_[i].data(), DType::kF32, {n, row.hv, row.head, row.head}, device);
    args.cu_seqlens = ConstTensor(cu_seqlens_.data(), DType::kI32, {n + 1}, device);
    args.o = Tensor(o_[i].data(), DType::kBF16, {1, t, row.hv, row.head}, device);
    args.head_map = HeadMap::kGrouped;
    return args;
  }

  // The call cut down to one sequence, one value head and some of its columns, on the host; outputs are allocated.
  struct Sample {
    std::vector<std::uint16_t> q, k, v;
    std::vector<float> g, beta, initial, final;
    std::vector<std::uint16_t> o;
    ChunkGatedDeltaRuleArgs args;
  };
  Sample sample(const Row& row, std::int64_t sequence, std::int64_t value_head,
                const std::vector<std::int64_t>& columns, std::int64_t compared_tokens) const {
    Sample sample;
    const std::int64_t head = row.head;
    const std::int64_t key_head = value_head / (row.hv / row.hk);
    const std::int64_t tokens = row.lengths[static_cast<std::size_t>(sequence)];
    const std::int64_t first = row.first_token(sequence);
    const auto width = static_cast<std::int64_t>(columns.size());
    for (std::int64_t t = first; t < first + tokens; ++t) {
      for (std::int64_t j = 0; j < head; ++j) sample.k.push_back(at(unit_, (t * row.hk + key_head) * head + j));
      for (const std::int64_t column : columns) {
        sample.v.push_back(at(normal_, (t * row.hv + value_head) * head + column));
      }
      sample.g.push_back(at(gate_values_, t * row.hv + value_head));
      sample.beta.push_back(at(beta_values_, t * row.hv + value_head));
    }
    sample.q = sample.k;  // both are drawn from the same values
    for (const std::int64_t column : columns) {
      const std::int64_t state_row = (sequence * row.hv + value_head) * head + column;
      for (std::int64_t j = 0; j < head; ++j) sample.initial.push_back(at(normal_f32_, state_row * head + j));
    }
    sample.final.resize(sample.initial.size());
    sample.o.resize(static_cast<std::size_t>(compared_tokens * width));
    ChunkGatedDeltaRuleArgs& args = sample.args;
    args.q = ConstTensor(sample.q.data(), DType::kBF16, {1, tokens, 1, head}, kCpu);
    args.k = ConstTensor(sample.k.data(), DType::kBF16, {1, tokens, 1, head}, kCpu);
    args.v = ConstTensor(sample.v.data(), DType::kBF16, {1, tokens, 1, width}, kCpu);
    args.g = ConstTensor(sample.g.data(), DType::kF32, {1, tokens, 1}, kCpu);
    args.beta = ConstTensor(sample.beta.data(), DType::kF32, {1, tokens, 1}, kCpu);
    args.initial_state = ConstTensor(sample.initial.data(), DType::kF32, {1, 1, width, head}, kCpu);
    args.final_state = Tensor(sample.final.data(), DType::kF32, {1, 1, width, head}, kCpu);
    args.o = Tensor(sample.o.data(), DType::kBF16, {compared_tokens, width}, kCpu);
    args.head_map = HeadMap::kGrouped;
    return sample;
  }

  int copies() const { return copies_; }

 private:
  template <class T>
  static T at(const std::vector<T>& values, std::int64_t i) {
    return values[static_cast<std::size_t>(i) % values.size()];
  }

  // What the tensors repeat.
  void draw_values(std::int64_t head) {
    cases::Random random(7);
    unit_.resize(static_cast<std::size_t>(8192 * head));
    for (std::size_t i = 0; i < unit_.size(); i += static_cast<std::size_t>(head)) {
      double x[kMostHead];
      double sum = 0.0;
      for (std::int64_t j = 0; j < head; ++j) {
        x[j] = random.normal();
        sum += x[j] * x[j];
      }
      for (std::int64_t j = 0; j < head; ++j) {
        unit_[i + static_cast<std::size_t>(j)] = f32_to_bf16(static_cast<float>(x[j] / std::sqrt(sum)));
      }
    }
    normal_.resize(1U << 20U);
    for (std::uint16_t& value : normal_) value = f32_to_bf16(static_cast<float>(random.normal()));
    normal_f32_.resize(1U << 18U);
    for (float& value : normal_f32_) value = static_cast<float>(random.normal());
    // Head 3 of every four has g = 0; all head counts but those in multiples of four share the pattern approximately.
    gate_values_.resize(1U << 18U);
    for (std::size_t i = 0; i < gate_values_.size(); ++i) {
      gate_values_[i] = i % 4 == 3 ? 0.0F : static_cast<float>(-std::log1p(std::exp(-random.normal())) / 16.0);
    }
    beta_values_.resize(1U << 18U);
    for (float& value : beta_values_) value = static_cast<float>(1.0 / (1.0 + std::exp(-random.normal())));
  }

  Stream stream_;
  int copies_;
  std::vector<std::uint16_t> unit_, normal_;
  std::vector<float> normal_f32_, gate_values_, beta_values_;
  std::vector<DeviceMemory> q_, k_, v_, g_, beta_, initial_, final_, o_;
  DeviceMemory cu_seqlens_;
};

// Runs a row once and compares a few columns of two heads with the oracle, from the first token of a sequence to its
// final state. Empty if they are right.
std::string check(const Stream& stream, Inputs& inputs, const Row& row) {
  constexpr std::int64_t kTokenColumns = 131072;  // tokens x columns of a head that the oracle computes
  constexpr std::int64_t kComparedTokens = 256;
  const ChunkGatedDeltaRuleArgs args = inputs.arguments(row, 0);
  struct Checked {
    std::int64_t sequence, value_head;
    std::vector<std::int64_t> columns;
    std::vector<std::int64_t> tokens;  // of the sequence
  };
  cases::Random random(13);
  std::vector<Checked> checked;
  const auto sequences = static_cast<std::int64_t>(row.lengths.size());
  for (const std::int64_t sequence : {random.below(sequences), sequences - 1}) {
    Checked one{sequence, random.below(row.hv), {}, {}};
    const std::int64_t length = row.lengths[static_cast<std::size_t>(sequence)];
    const std::int64_t columns = std::clamp<std::int64_t>(kTokenColumns / std::max<std::int64_t>(length, 1), 2, 8);
    for (std::int64_t i = 0; i < columns; ++i) one.columns.push_back(random.below(row.head));
    for (std::int64_t i = 0; i < std::min(length, kComparedTokens); ++i) {
      one.tokens.push_back(length <= kComparedTokens ? i : random.below(length));
    }
    checked.push_back(std::move(one));
  }
  // The head's row of a token, and a row of its state.
  const auto output = [&](const Checked& one, std::int64_t token) {
    return Tensor(args.o.row(0, row.first_token(one.sequence) + token, one.value_head), DType::kBF16, {row.head},
                  args.o.device);
  };
  const auto state = [&](const Checked& one, std::int64_t column) {
    return Tensor(args.final_state.row(one.sequence, one.value_head, column), DType::kF32, {row.head},
                  args.final_state.device);
  };
  for (const Checked& one : checked) {
    for (const std::int64_t token : one.tokens) fill_with_nan(stream, output(one, token));
    for (const std::int64_t column : one.columns) fill_with_nan(stream, state(one, column));
  }
  const DeviceMemory workspace(stream.device, workspace_size(args, stream));
  chunk_gated_delta_rule(args, workspace.workspace(), stream);
  synchronize(stream);
  const Arithmetic arithmetic = arithmetic_of(explain(args, stream));
  for (const Checked& one : checked) {
    Inputs::Sample sample = inputs.sample(row, one.sequence, one.value_head, one.columns, std::ssize(one.tokens));
    std::vector<std::uint16_t> values(static_cast<std::size_t>(row.head));
    auto* o = sample.o.data();
    for (const std::int64_t token : one.tokens) {
      copy_to_host(stream, values.data(), output(one, token).data, values.size() * sizeof(std::uint16_t));
      for (const std::int64_t column : one.columns) *o++ = values[static_cast<std::size_t>(column)];
    }
    float* final_row = sample.final.data();
    for (const std::int64_t column : one.columns) {
      copy_to_host(stream, final_row, state(one, column).data, static_cast<std::size_t>(row.head) * sizeof(float));
      final_row += row.head;
    }
    const std::string error = find_error(expect_prefill(sample.args, one.tokens), arithmetic);
    if (!error.empty()) return fmt::format("sequence {}, head {}: {}", one.sequence, one.value_head, error);
  }
  return {};
}

// Milliseconds of a row: the median over replays of a graph with `launches` runs, over as many copies of the data as
// there are.
double measure(const DeviceFunctions& functions, const Stream& stream, Inputs& inputs, const Row& row, int launches) {
  std::vector<ChunkGatedDeltaRuleArgs> arguments;
  for (int i = 0; i < inputs.copies(); ++i) arguments.push_back(inputs.arguments(row, i));
  for (ChunkGatedDeltaRuleArgs& args : arguments) args.cu_seqlens = arguments.back().cu_seqlens;
  const DeviceMemory workspace(stream.device, workspace_size(arguments[0], stream));
  const auto enqueue = [&](const Stream& to) {
    for (int i = 0; i < launches; ++i) {
      chunk_gated_delta_rule(arguments[static_cast<std::size_t>(i % inputs.copies())], workspace.workspace(), to);
    }
  };
  std::vector<double> seconds = functions.time(stream.device, enqueue, 15);
  std::sort(seconds.begin(), seconds.end());
  return 1e3 * seconds[seconds.size() / 2] / launches;
}

}  // namespace

int bench_prefill(const BenchOptions& options, const BackendInfo& backend_info) {
  const bool published = options.suite == "published";
  const bool widths = options.suite == "widths";
  const bool is_short = options.suite == "short";
  std::vector<Row> rows = published ? published_rows() : widths ? width_rows() : short_rows();
  const std::regex pattern(options.selection.case_regex);
  std::erase_if(rows, [&](const Row& row) {
    return !std::regex_search(fmt::format("({},{}) {} K{}", row.hk, row.hv, row.name, row.head), pattern);
  });
  if (rows.empty()) throw std::runtime_error("no row of the suite matches '" + options.selection.case_regex + "'");
  const Stream stream{{backend_info.type, 0}, 0, nullptr};
  const DeviceFunctions& functions = *backend(backend_info.type).device;
  std::optional<Inputs> inputs;
  std::int64_t head = 0;  // that they are for
  std::string csv = "model,seqlens,num_k_heads,num_v_heads,thalweg_ms,flashqla_ms,flashinfer_ms,fla_ms,floor_ms\n";
  print("{:<8} {:<14} {:>10} {:>9} {:>8}", "heads", "sequences", "ours ms", "floor ms", "x floor");
  if (published) print(" {:>9} {:>10} {:>8} {:>10}", "FlashQLA", "FlashInfer", "FLA", "best/ours");
  print("\n");
  double log_sum = 0.0;
  double least = 1e9;
  int faster = 0;
  int timed = 0;
  bool failed = false;
  for (const Row& row : rows) {
    // Short runs are timed many at a time, so that the clock's step and the graph's launch do not count.
    if (row.head != head) {
      head = row.head;
      std::vector<Row> same;
      std::copy_if(rows.begin(), rows.end(), std::back_inserter(same), [&](const Row& r) { return r.head == head; });
      inputs.reset();
      inputs.emplace(stream, same, is_short ? 8 : 1);
    }
    const std::string name = widths ? fmt::format("{} K{}", row.name, row.head) : row.name;
    const std::string error = options.check ? check(stream, *inputs, row) : "";
    if (!error.empty()) {
      failed = true;
      print("({:>2},{:>2})  {:<14} wrong result, not timed: {}\n", row.hk, row.hv, name, error);
      continue;
    }
    double ms = measure(functions, stream, *inputs, row, is_short ? 100 : 1);
    if (!is_short && ms < 0.05) ms = measure(functions, stream, *inputs, row, 100);
    print("({:>2},{:>2})  {:<14} {:>10.4f} {:>9.4f} {:>8.2f}", row.hk, row.hv, name, ms, row.floor_ms(),
          ms / row.floor_ms());
    if (published) {
      const double best = std::min(row.published_ms[0], row.published_ms[1]);
      log_sum += std::log(best / ms);
      least = std::min(least, best / ms);
      faster += best > ms ? 1 : 0;
      ++timed;
      print(" {:>9.3f} {:>10.3f} {:>8.3f} {:>10.2f}", row.published_ms[0], row.published_ms[1], row.published_ms[2],
            best / ms);
    }
    print("\n");
    std::fflush(stdout);
    csv += fmt::format("{},{},{},{},{:.5f},{},{},{},{:.5f}\n", row.model, row.name, row.hk, row.hv, ms,
                       published ? fmt::format("{}", row.published_ms[0]) : "",
                       published ? fmt::format("{}", row.published_ms[1]) : "",
                       published ? fmt::format("{}", row.published_ms[2]) : "", row.floor_ms());
  }
  if (published && timed > 0) {
    print(
        "\n{} rows: (better of FlashQLA and FlashInfer, as published) / ours: geometric mean {:.3f}, least "
        "{:.2f}, above 1 in {}\n",
        timed, std::exp(log_sum / timed), least, faster);
  }
  if (!options.csv.empty()) write_text(options.csv, csv);
  return failed ? 1 : 0;
}

}  // namespace thalweg::app
