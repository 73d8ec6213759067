#include "cpu/kernels.h"

namespace thalweg::cpu {

void add_moe_kernels(Backend&) {}

}  // namespace thalweg::cpu
