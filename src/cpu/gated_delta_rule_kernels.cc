#include "cpu/kernels.h"

namespace thalweg::cpu {

void add_gated_delta_rule_kernels(Backend&) {}

}  // namespace thalweg::cpu
