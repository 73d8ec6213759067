#include "cases/case.h"

namespace thalweg::cases {

void add_nn_cases(std::vector<Case>&) {}

}  // namespace thalweg::cases
