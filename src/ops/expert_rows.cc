#include "ops/dispatch.h"
#include "ops/expert_checks.h"

namespace thalweg {

void validate(const ExpertRowsArgs& args, Check& check) {
  Dim t{"T"}, s{"S"}, bounds{"E+1"};
  check.input("expert_ids", args.expert_ids, {DType::kI32}, t, s);
  check.output("expert_offsets", args.expert_offsets, {DType::kI32}, bounds);
  if (bounds.value < 2) {
    check.fail("expert_offsets", "E + 1 elements, E at least 1", to_string(args.expert_offsets));
  }
  Dim pairs{"T*S", t.value * s.value};
  check.output("rows", args.rows, {DType::kI32}, pairs);
  check.fault(args.fault);
  check_expert_ids(check, args.expert_ids, {"E", bounds.value - 1});
}

THALWEG_OPERATION(expert_rows, ExpertRowsArgs);

}  // namespace thalweg
