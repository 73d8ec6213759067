#include "cases/gated_delta.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace thalweg::cases {

std::int64_t RuleShape::total_tokens() const {
  return lengths.empty() ? tokens : std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0});
}

std::int64_t RuleShape::num_sequences() const {
  return lengths.empty() ? batch : static_cast<std::int64_t>(lengths.size());
}

std::string RuleShape::name() const {
  std::string text = lengths.empty() ? "T" + std::to_string(tokens) : "ragged";
  for (const std::int64_t length : lengths) text += "_" + std::to_string(length);
  if (batch > 1) text += "_B" + std::to_string(batch);
  text += "_H" + std::to_string(hk) + "_" + std::to_string(hv) + "_K" + std::to_string(k) + "_V" + std::to_string(v);
  text += "_" + std::string(dtype_name(dtype));
  if (head_map == HeadMap::kTiled) text += "_tiled";
  constexpr const char* kGateNames[] = {"_g0", "", "_strong", "_mixed"};
  text += kGateNames[static_cast<int>(gates)];
  if (betas == Betas::kZero) text += "_beta0";
  if (betas == Betas::kOne) text += "_beta1";
  if (strided) text += "_strided";
  if (value_scale != 1.0) text += "_large";
  return text;
}

double gate(Gates gates, std::int64_t head, Random& random) {
  switch (gates) {
    case Gates::kNone:
      return 0.0;
    case Gates::kNear:
      return head % 4 == 3 ? 0.0 : -std::log1p(std::exp(-random.normal())) / 16.0;
    case Gates::kStrong:
      return -20.0;
    case Gates::kMixed:
      return random.uniform() < 0.1 ? 0.0 : -std::exp(random.uniform(std::log(1e-4), std::log(20.0)));
  }
  return 0.0;
}

double write_strength(Betas betas, Random& random) {
  const double drawn = 1.0 / (1.0 + std::exp(-random.normal()));
  return betas == Betas::kZero ? 0.0 : betas == Betas::kOne ? 1.0 : drawn;
}

RuleInputs make_rule_inputs(const RuleShape& shape, Memory& memory, Random& random) {
  memory.set_layout(shape.strided ? Memory::Layout::kStrided : Memory::Layout::kContiguous);
  const std::int64_t t = shape.total_tokens();
  // Rows are random, then scaled to norm 1, every 16th to 0.9: kernels must not assume norm 1.
  const auto unit_rows = [&](std::int64_t heads) {
    const Tensor rows = memory.input(shape.dtype, {shape.batch, t, heads, shape.k}, [] { return 0.0; });
    std::int64_t count = 0;
    for_each_row(rows, [&](void* row, std::int64_t, std::int64_t width) {
      std::vector<double> x(static_cast<std::size_t>(width));
      for (double& value : x) value = random.normal();
      const double norm = std::sqrt(std::inner_product(x.begin(), x.end(), x.begin(), 0.0));
      const double target = count++ % 16 == 5 ? 0.9 : 0.999;
      for (std::int64_t i = 0; i < width; ++i) {
        write_element(shape.dtype, row, i, x[static_cast<std::size_t>(i)] * target / norm);
      }
    });
    memory.refresh(rows);
    return rows;
  };
  RuleInputs inputs;
  inputs.q = unit_rows(shape.hk);
  inputs.k = unit_rows(shape.hk);
  inputs.v = memory.input(shape.dtype, {shape.batch, t, shape.hv, shape.v},
                          [&] { return shape.value_scale * random.normal(); });
  std::int64_t head = 0;
  inputs.g = memory.input(DType::kF32, {shape.batch, t, shape.hv},
                          [&] { return gate(shape.gates, head++ % shape.hv, random); });
  inputs.beta =
      memory.input(DType::kF32, {shape.batch, t, shape.hv}, [&] { return write_strength(shape.betas, random); });
  if (!shape.lengths.empty()) {
    std::size_t n = 0;
    std::int64_t sum = 0;
    inputs.cu_seqlens = memory.input(DType::kI32, {shape.num_sequences() + 1}, [&] {
      const auto value = static_cast<double>(sum);
      if (n < shape.lengths.size()) sum += shape.lengths[n++];
      return value;
    });
  }
  return inputs;
}

Tensor make_indices(std::int64_t sequences, Memory& memory) {
  std::int64_t n = 0;
  return memory.input(DType::kI32, {sequences}, [&] {
    const std::int64_t index = n++;
    return index == 1 ? -1.0 : static_cast<double>(2 * (sequences - 1 - index) + 1);
  });
}

GateInputs make_gates(std::int64_t batch, std::int64_t tokens, std::int64_t hv, DType dtype, Memory& memory,
                      Random& random) {
  GateInputs gates;
  // a + dt_bias sometimes exceeds 20, where softplus changes its form.
  std::int64_t count = 0;
  gates.a =
      memory.input(dtype, {batch, tokens, hv}, [&] { return count++ % 7 == 3 ? 25.0 : 2.0 * random.normal() - 2.0; });
  gates.b = memory.input(dtype, {batch, tokens, hv}, [&] { return 2.0 * random.normal(); });
  gates.a_log = memory.input(DType::kF32, {hv}, [&] { return random.uniform(-3.0, 1.0); });
  gates.dt_bias = memory.input(dtype, {hv}, [&] { return random.normal(); });
  return gates;
}

double largest_gate(const ConstTensor& g_cumsum) {
  double largest = 0.0;
  for (const double g : reference::read(g_cumsum).values) largest = std::max(largest, std::abs(g));
  return largest;
}

std::vector<RuleShape> rule_shapes() {
  std::vector<RuleShape> shapes;
  for (const std::int64_t t : {0, 1, 15, 16, 17, 63, 64, 65, 127}) shapes.push_back({.tokens = t});
  shapes.push_back({.tokens = 1000, .hk = 1, .hv = 2, .k = 32, .v = 32});
  // Head ratios and both maps.
  for (const HeadMap map : {HeadMap::kGrouped, HeadMap::kTiled}) {
    for (const std::int64_t ratio : {1, 2, 3, 4}) {
      shapes.push_back({.tokens = 70, .hk = 2, .hv = 2 * ratio, .k = 32, .v = 32, .head_map = map});
    }
  }
  // Gates and write strengths.
  for (const Gates gates : {Gates::kNone, Gates::kStrong, Gates::kMixed}) {
    shapes.push_back({.tokens = 130, .k = 32, .v = 64, .gates = gates});
  }
  for (const Betas betas : {Betas::kZero, Betas::kOne}) {
    shapes.push_back({.tokens = 80, .k = 64, .v = 32, .betas = betas});
  }
  // Ragged batches, with empty sequences at either end and in between.
  shapes.push_back({.k = 32, .v = 32, .lengths = {0, 5, 64, 0, 0, 65, 1, 130, 0}});
  shapes.push_back({.k = 64, .v = 32, .lengths = {17, 63, 16}, .dtype = DType::kBF16, .head_map = HeadMap::kTiled});
  shapes.push_back({.lengths = {0, 0}});
  shapes.push_back({.tokens = 33, .k = 32, .v = 32, .batch = 3, .gates = Gates::kMixed});
  // Activations of 16 bits and views.
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    shapes.push_back({.tokens = 100, .k = 128, .v = 128, .dtype = dtype});
    shapes.push_back({.tokens = 65, .k = 64, .v = 64, .dtype = dtype, .gates = Gates::kMixed, .strided = true});
  }
  shapes.push_back({.tokens = 66, .k = 32, .v = 96, .batch = 2, .strided = true});
  // Values past what f16 can hold.
  shapes.push_back({.tokens = 67, .k = 32, .v = 32, .value_scale = 1e5});
  shapes.push_back({.tokens = 67, .k = 32, .v = 32, .dtype = DType::kBF16, .value_scale = 1e5});
  return shapes;
}

}  // namespace thalweg::cases
