#pragma once

// The router of a mixture of experts: its logits in f32, and the choice of experts.

#include <cstdint>
#include <string_view>

#include "cuda/common/tensor_view.h"
#include "cuda/experts/expert_range.h"
#include "cuda/launch.h"
#include "thalweg/moe.h"
#include "thalweg/tensor.h"

namespace thalweg::cu {

// Logits as partial sums, added in order: logits[split][t,e].
struct RouterLogits {
  Elements logits;  // [T,E] of the first split
  int splits = 1;
  std::int64_t split_stride = 0;  // elements
  std::int64_t tokens = 0;
  int experts = 0;
};

struct Routing {
  std::int32_t* ids;
  std::int64_t ids_stride;
  float* weights;
  std::int64_t weights_stride;
  int slots;
  bool renormalize;
  ExpertRange here{};  // ids count from its first
};

// With another score than softmax, or a bias [E] (may be null).
struct RoutingScore {
  RouterScore score;
  const float* bias;
};
inline constexpr const char* kOtherRouting = "takes softmax without a bias";  // of kernels that take no RoutingScore
void launch_scored_route(const RouterLogits& logits, const Routing& routing, const RoutingScore& score,
                         const DeviceProperties& device, cudaStream_t stream, std::string_view operation);

// The most experts whose logits fit into shared memory.
constexpr std::int64_t kMostRoutedExperts = 8192;

void launch_route(const RouterLogits& logits, const Routing& routing, const DeviceProperties& device,
                  cudaStream_t stream, std::string_view operation);

// Splits of the columns of the router's product, so that few tokens keep the device busy too.
int router_splits(std::int64_t tokens, std::int64_t experts, std::int64_t columns, int multiprocessors);

// logits[split][T,E] = x[T,D] router[E,D]^T over the columns of the split, with the accuracy of f32: rounding to 16
// bits could choose another expert. `router` has a float dtype.
void launch_router_logits(const ConstTensor& x, const ConstTensor& router, float* logits, int splits,
                          const DeviceProperties& device, cudaStream_t stream, std::string_view operation);

// The same on Hopper, for many tokens. `staged` is memory for the router's terms.
namespace sm90 {
bool router_takes(std::int64_t tokens, std::int64_t experts, std::int64_t columns, const DeviceProperties& device);
std::int64_t staged_router_bytes(std::int64_t experts, std::int64_t columns);
int router_splits(std::int64_t tokens, std::int64_t experts, std::int64_t columns, int multiprocessors);
void launch_router_logits(const ConstTensor& x, const ConstTensor& router, void* staged, float* logits, int splits,
                          const DeviceProperties& device, cudaStream_t stream, std::string_view operation);
}  // namespace sm90

}  // namespace thalweg::cu
