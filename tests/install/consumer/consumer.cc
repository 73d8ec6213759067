// An operation from C++ and the version from C.

#include <cstdio>
#include <cstring>

#include "thalweg/nn.h"
#include "thalweg/thalweg.h"
#include "thalweg/version.h"

#if defined(THALWEG_KERNELS_ONLY) && defined(THALWEG_DEFAULT_DEVICE)
#error "thalweg.h declares models, which this library lacks"
#endif

int main() {
  float a[4] = {1, 2, 3, 4};
  float y[4] = {};
  const thalweg::Tensor sum(y, thalweg::DType::kF32, {1, 4}, thalweg::kCpu);
  const thalweg::ConstTensor same(a, thalweg::DType::kF32, {1, 4}, thalweg::kCpu);
  const thalweg::AddArgs args{.a = same, .b = same, .y = sum};
  thalweg::HostWorkspace scratch;
  thalweg::add(args, scratch.reserve(thalweg::workspace_size(args, thalweg::Stream::cpu())), thalweg::Stream::cpu());
  try {
    thalweg::add({.a = same, .b = same, .y = {}}, {}, thalweg::Stream::cpu());
    return 1;
  } catch (const thalweg::Error& error) {
    std::puts(error.what());
  }
  const bool versions =
      thalweg::version() == THALWEG_VERSION_STRING && std::strcmp(thalweg_version(), THALWEG_VERSION_STRING) == 0;
  std::printf("%g %s\n", static_cast<double>(y[3]), thalweg_version());
  return y[3] == 8.0F && versions ? 0 : 1;
}
