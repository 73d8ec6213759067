#include <cstdint>

#include "cuda/common/pdl.h"
#include "cuda/kernels.h"
#include "cuda/launch.h"

namespace thalweg::cu {
namespace {

constexpr int kThreads = 128;

struct Sequences {
  const std::int32_t* tokens;
  const std::int32_t* end_tokens;
  int num_end_tokens;
  std::int32_t *ids, *positions, *lengths, *slots, *history;
  std::int64_t history_stride;
  std::int64_t history_slots, history_length;
  int count;
};

// A thread has a sequence.
__global__ void __launch_bounds__(kThreads) advance_sequences(const __grid_constant__ Sequences p) {
  pdl_trigger_and_wait();
  const int n = static_cast<int>(blockIdx.x * kThreads + threadIdx.x);
  if (n >= p.count) return;
  const std::int32_t slot = p.slots[n];
  if (slot < 0) return;
  const std::int32_t token = p.tokens[n];
  bool ends = token == -1;
  for (int i = 0; i < p.num_end_tokens; ++i) ends |= token == p.end_tokens[i];
  if (ends) {
    p.slots[n] = -1;
    return;
  }
  const std::int32_t length = p.lengths[n];
  if (p.history != nullptr && slot < p.history_slots && length >= 0 && length < p.history_length) {
    p.history[slot * p.history_stride + length] = token;
  }
  p.ids[n] = token;
  p.positions[n] += 1;
  p.lengths[n] = length + 1;
}

void run(const AdvanceArgs& args, Workspace, const Stream& stream) {
  Sequences p{};
  const auto values = [](const Tensor& tensor) { return static_cast<std::int32_t*>(tensor.data); };
  p.tokens = static_cast<const std::int32_t*>(args.tokens.data);
  p.end_tokens = static_cast<const std::int32_t*>(args.end_tokens.data);
  p.num_end_tokens = static_cast<int>(args.end_tokens.size());
  p.ids = values(args.ids);
  p.positions = values(args.positions);
  p.lengths = values(args.lengths);
  p.slots = values(args.slots);
  if (args.history.defined()) {
    p.history = values(args.history);
    p.history_stride = args.history.stride(0);
    p.history_slots = args.history.dim(0);
    p.history_length = args.history.dim(1);
  }
  p.count = static_cast<int>(args.tokens.dim(0));
  if (p.count == 0) return;
  const CurrentDevice current(stream, args.kName);
  pdl_launch(advance_sequences, dim3(static_cast<unsigned>((p.count + kThreads - 1) / kThreads)), kThreads, 0,
             properties(stream.device.index), native(stream), args.kName, p);
}

}  // namespace

KernelList<AdvanceArgs> advance_kernels() {
  static constexpr Kernel<AdvanceArgs> kKernels[] = {
      {"sequences", always_supported<AdvanceArgs>, no_workspace<AdvanceArgs>, run}};
  return kKernels;
}

}  // namespace thalweg::cu
