#include "ops/expert_checks.h"

#include <cmath>

namespace thalweg {

void check_precision(const Check& check, MatmulPrecision precision) {
  if (!(precision == MatmulPrecision::kExact || precision == MatmulPrecision::kFast)) {
    check.fail("precision", "kExact or kFast", std::to_string(static_cast<int>(precision)));
  }
}

void check_score(const Check& check, RouterScore score) {
  if (!(score == RouterScore::kSoftmax || score == RouterScore::kSigmoid)) {
    check.fail("score", "RouterScore::kSoftmax or kSigmoid", "neither");
  }
}

void check_router_bias(const Check& check, std::string_view argument, const ConstTensor& bias) {
  if (!bias.defined() || !check.host_values()) return;
  const auto* values = static_cast<const float*>(bias.data);
  for (std::int64_t i = 0; i < bias.dim(0); ++i) {
    if (std::isfinite(values[i])) continue;
    check.fail(argument, "finite numbers", std::to_string(values[i]) + " at [" + std::to_string(i) + "]");
  }
}

void check_expert_ids(const Check& check, const ConstTensor& expert_ids, const Dim& experts) {
  // The row lists number the pairs with 32 bits.
  if (expert_ids.size() > std::int64_t{0x7FFFFFFF}) {
    check.fail("expert_ids", "less than 2^31 ids", to_string(expert_ids));
  }
  if (experts.value > std::int64_t{0x7FFFFFFF}) {
    check.fail("expert_ids", "less than 2^31 experts", std::to_string(experts.value));
  }
  if (!check.host_values()) return;
  for (std::int64_t t = 0; t < expert_ids.dim(0); ++t) {
    for (std::int64_t s = 0; s < expert_ids.dim(1); ++s) {
      const std::int32_t id = static_cast<const std::int32_t*>(expert_ids.row(t))[s];
      if (id >= -1 && id < experts.value) continue;
      check.fail("expert_ids", "ids of 0 to " + std::to_string(experts.value - 1) + ", or -1",
                 std::to_string(id) + " at [" + std::to_string(t) + "," + std::to_string(s) + "]");
    }
  }
}

void check_expert_matmul(Check& check, const ExpertMatmulArgs& args) {
  Dim e{"E"}, n{"N"}, k{"K"}, t{"T"}, s{"S"};
  check.input("weight", args.weight, kWeightTypes, e, n, k);
  if (e.value < 1) check.fail("weight", "at least one expert", to_string(args.weight));
  check.input("expert_ids", args.expert_ids, {DType::kI32}, t, s);
  if (args.x.rank == 2) {
    check.input("x", args.x, kFloatTypes, t, k);
  } else {
    check.input("x", args.x, kFloatTypes, t, s, k);
  }
  check.output("y", args.y, {DType::kF32, args.x.dtype}, t, s, n);
  check.fault(args.fault);
  check_precision(check, args.precision);
  check_expert_ids(check, args.expert_ids, e);
}

}  // namespace thalweg
