// A build without clang or Boost.Context, or with Metal itself.

#include "metal/host/attach.h"

namespace thalweg::metal {

void attach_executor() {}

}  // namespace thalweg::metal
