#include "metal/launch.h"

#include "metal/gated_delta.h"

namespace thalweg::metal {

Buffer buffer_of(const ConstTensor& tensor) {
  if (tensor.size() == 0) return {};
  std::int64_t last = 0;
  for (int i = 0; i + 1 < tensor.rank; ++i) last += (tensor.dim(i) - 1) * tensor.stride(i);
  return {tensor.data, static_cast<std::size_t>(bytes_of(tensor.dtype, last + tensor.dim(tensor.rank - 1)))};
}

void add_gates(Launch& launch, const ConstTensor& g, const ConstTensor& beta, const GateInputs& gates) {
  const bool raw = gates.a.defined();
  launch.add(raw ? gates.a : g).add(raw ? gates.b : beta).add(gates.a_log).add(gates.dt_bias);
  launch.constant("kRawGates", raw).constant("kGateType", gates.a.dtype);
  launch.constant("kALogType", gates.a_log.dtype).constant("kBiasType", gates.dt_bias.dtype);
}

}  // namespace thalweg::metal
