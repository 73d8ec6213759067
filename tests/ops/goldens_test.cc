// The gated delta rule against an independent implementation, Hugging Face transformers, whose outputs
// tools/make_gated_delta_goldens.py stored. It computes in float32, so that the oracle agrees to float32's accuracy.

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <vector>

#include "cases/memory.h"
#include "reference/gated_delta_rule.h"
#include "thalweg/gated_delta_rule.h"

namespace thalweg {
namespace {

// As in the script.
double value(std::uint32_t stream, std::uint32_t index) {
  std::uint32_t x = (index + 1U) * 2654435761U + stream * 40503U;
  x = (x ^ (x >> 15)) * 2246822519U;
  x = (x ^ (x >> 13)) * 3266489917U;
  x ^= x >> 16;
  return static_cast<double>(x) / 2147483648.0 - 1.0;
}

double relative_l2(const std::vector<double>& actual, const std::vector<double>& golden) {
  EXPECT_EQ(actual.size(), golden.size());
  double error = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < golden.size(); ++i) {
    error += (actual[i] - golden[i]) * (actual[i] - golden[i]);
    size += golden[i] * golden[i];
  }
  return std::sqrt(error / size);
}

template <class Args>
void check(const nlohmann::json& golden, cases::Memory& memory) {
  const auto get = [&](const char* key) { return golden.at(key).get<std::int64_t>(); };
  const std::int64_t b = get("batch"), t = get("tokens"), hk = get("hk"), hv = get("hv"), k = get("k"), v = get("v");
  const double decay = golden.at("decay").get<double>();
  const auto input = [&](std::uint32_t stream, std::vector<std::int64_t> shape, double factor, double offset) {
    std::uint32_t index = 0;
    return memory.input(DType::kF32, std::move(shape), [&] { return factor * (value(stream, index++) + offset); });
  };
  Args args;
  args.q = input(1, {b, t, hk, k}, 1.0, 0.0);
  args.k = input(2, {b, t, hk, k}, 1.0, 0.0);
  args.v = input(3, {b, t, hv, v}, 1.0, 0.0);
  args.g = input(4, {b, t, hv}, decay / 2.0, -1.0);
  args.beta = input(5, {b, t, hv}, 0.5, 1.0);
  if (golden.at("initial_state").get<bool>()) args.initial_state = input(6, {b, hv, v, k}, 1.0, 0.0);
  args.final_state = memory.output(DType::kF32, {b, hv, v, k});
  args.o = memory.output(DType::kF32, {b, t, hv, v});
  args.head_map = HeadMap::kGrouped;
  args.qk_norm = QkNorm::kL2;

  const auto o = golden.at("o").get<std::vector<double>>();
  const auto state = golden.at("final_state").get<std::vector<double>>();
  const reference::RuleResult exact = reference::recurrence(reference::read_rule(args));
  EXPECT_LT(relative_l2(exact.o.values, o), 2e-6);
  EXPECT_LT(relative_l2(exact.final_state.values, state), 2e-6);

  HostWorkspace scratch;
  run(args, scratch.reserve(workspace_size(args, Stream::cpu())), Stream::cpu());
  EXPECT_LT(relative_l2(reference::read(args.o).values, o), 1e-5);
  EXPECT_LT(relative_l2(reference::read(args.final_state).values, state), 1e-5);
}

TEST(Goldens, GatedDeltaRuleOfTransformers) {
  std::ifstream file(THALWEG_TEST_DIR "/ops/goldens/gated_delta_rule.json");
  const nlohmann::json goldens = nlohmann::json::parse(file);
  int count = 0;
  for (const nlohmann::json& golden : goldens.at("cases")) {
    SCOPED_TRACE(golden.at("name").get<std::string>());
    cases::Memory chunk;
    cases::Memory recurrent;
    check<ChunkGatedDeltaRuleArgs>(golden, chunk);
    check<RecurrentGatedDeltaRuleArgs>(golden, recurrent);
    ++count;
  }
  EXPECT_GE(count, 6);
}

}  // namespace
}  // namespace thalweg
