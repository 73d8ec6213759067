#include "cases/case.h"
#include "cases/experts.h"

namespace thalweg::cases {

void add_moe_cases(std::vector<Case>& cases) {
  add_linear_cases(cases);
  add_projections_cases(cases);
  add_routing_cases(cases);
  add_expert_matmul_cases(cases);
  add_moe_ffn_cases(cases);
}

}  // namespace thalweg::cases
