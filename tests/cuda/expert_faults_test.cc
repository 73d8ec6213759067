// Expert ids that only the device sees: a slot whose expert is not here is skipped, one with a wrong id is reported
// too, the others are right.

#include <algorithm>
#include <vector>

#include "cases/experts.h"
#include "cuda/device.h"
#include "reference/moe.h"

namespace thalweg {
namespace {

using cases::Memory;
using cases::Random;

class ExpertFaults : public OnDevice {};

constexpr std::int64_t kExperts = 6;
constexpr std::int64_t kSlots = 2;

// Ids of which every third is wrong, or an expert that is not here.
std::vector<std::int32_t> some_ids(std::int64_t pairs, bool wrong) {
  constexpr std::int32_t kWrong[] = {kExperts, -1, 2'000'000'000, -2'000'000'000, -2};
  std::vector<std::int32_t> ids;
  for (std::int64_t i = 0; i < pairs; ++i) {
    const std::int32_t without = wrong ? kWrong[i / 3 % 5] : -1;
    ids.push_back(i % 3 == 1 ? without : static_cast<std::int32_t>(i * 5 % kExperts));
  }
  return ids;
}

Tensor id_tensor(Memory& memory, const std::vector<std::int32_t>& ids) {
  std::size_t i = 0;
  return memory.input(DType::kI32, {static_cast<std::int64_t>(ids.size()) / kSlots, kSlots},
                      [&] { return static_cast<double>(ids[i++]); });
}

template <class Args>
void check_matmul(const std::string& kernel, std::int64_t tokens, bool wrong) {
  Memory memory;
  Random random(5);
  cases::ExpertShape shape{
      .tokens = tokens, .slots = kSlots, .experts = kExperts, .n = 40, .k = 512, .precision = MatmulPrecision::kFast};
  Args args;
  static_cast<ExpertMatmulArgs&>(args) = cases::make_expert_args(shape, memory, random);
  const std::vector<std::int32_t> ids = some_ids(tokens * kSlots, wrong);
  args.expert_ids = id_tensor(memory, ids);
  args.fault = memory.in_out(DType::kI32, {1}, [] { return 0.0; });
  ExpertMatmulArgs right = args;
  std::vector<std::int32_t> right_ids = ids;
  for (std::int32_t& id : right_ids) id = id >= 0 && id < kExperts ? id : 0;
  right.expert_ids = id_tensor(memory, right_ids);
  const reference::Array exact = reference::mul_mat_id(right, reference::Precision::kExact);

  select_kernel(Args::kName, kernel);
  run_on_device(args, memory);
  select_kernel(Args::kName, "");
  EXPECT_EQ(*static_cast<const std::int32_t*>(args.fault.data), wrong ? kFaultExpertIds : 0) << kernel;
  const std::vector<double> values = reference::read(args.y).values;
  const auto* bits = static_cast<const std::uint32_t*>(args.y.data);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (ids[i / 40] == right_ids[i / 40]) {
      ASSERT_NEAR(values[i], exact.values[i], 0.02 * 40) << kernel << " " << i;
    } else {
      ASSERT_EQ(bits[i], 0xFFFFFFFFU) << kernel << " " << i;  // as before the run
    }
  }
}

TEST_F(ExpertFaults, Matmul) {
  for (const bool wrong : {true, false}) {
    for (const std::int64_t tokens : {1, 30}) {
      for (const std::string kernel : {"matvec", "stream", "exact", ""})
        check_matmul<MulMatIdArgs>(kernel, tokens, wrong);
      check_matmul<MulMmIdArgs>("", tokens, wrong);
      check_matmul<MulMvIdArgs>("", tokens, wrong);
    }
  }
}

TEST_F(ExpertFaults, Rows) {
  for (const bool wrong : {true, false}) {
    Memory memory;
    const std::vector<std::int32_t> ids = some_ids(2000, wrong);
    ExpertRowsArgs args;
    args.expert_ids = id_tensor(memory, ids);
    args.expert_offsets = memory.output(DType::kI32, {kExperts + 1});
    args.rows = memory.output(DType::kI32, {2000});
    args.fault = memory.in_out(DType::kI32, {1}, [] { return 0.0; });
    run_on_device(args, memory);
    EXPECT_EQ(*static_cast<const std::int32_t*>(args.fault.data), wrong ? kFaultExpertIds : 0);
    const auto* offsets = static_cast<const std::int32_t*>(args.expert_offsets.data);
    const auto* rows = static_cast<const std::int32_t*>(args.rows.data);
    std::int32_t place = 0;
    for (std::int32_t expert = 0; expert < kExperts; ++expert) {
      ASSERT_EQ(offsets[expert], place);
      for (std::int32_t pair = 0; pair < 2000; ++pair) {
        if (ids[static_cast<std::size_t>(pair)] != expert) continue;
        ASSERT_EQ(rows[place++], pair);
      }
    }
    EXPECT_EQ(offsets[kExperts], place);
    EXPECT_TRUE(std::all_of(rows + place, rows + 2000, [](std::int32_t row) { return row == -1; }));
  }
}

}  // namespace
}  // namespace thalweg
