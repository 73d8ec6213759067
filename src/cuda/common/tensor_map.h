#pragma once

#include <cuda.h>

namespace thalweg::cu {

// The driver's function that makes tensor maps, found at run time: the library does not link the driver, which may be
// absent. Null if there is none.
decltype(&cuTensorMapEncodeTiled) tensor_map_encoder();

}  // namespace thalweg::cu
