#include "cases/case.h"

namespace thalweg::cases {

void add_moe_cases(std::vector<Case>&) {}

}  // namespace thalweg::cases
