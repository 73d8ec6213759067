// Stands for ../router_logits.cu where nothing is compiled for Hopper.

#include "cuda/routing.h"

namespace thalweg::cu::sm90 {

bool router_takes(std::int64_t, std::int64_t, std::int64_t, const DeviceProperties&) { return false; }
std::int64_t staged_router_bytes(std::int64_t, std::int64_t) { return 0; }
int router_parts(std::int64_t, std::int64_t, std::int64_t, int) { return 1; }
void launch_router_logits(const ConstTensor&, const ConstTensor&, void*, float*, int, const DeviceProperties&,
                          cudaStream_t, std::string_view) {}

}  // namespace thalweg::cu::sm90
