#include "cpu/kernels.h"

namespace thalweg::cpu {

void add_nn_kernels(Backend&) {}

}  // namespace thalweg::cpu
