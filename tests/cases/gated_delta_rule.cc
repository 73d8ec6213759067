#include "cases/gated_delta.h"

namespace thalweg::cases {

void add_gated_delta_rule_cases(std::vector<Case>&) {}

}  // namespace thalweg::cases
