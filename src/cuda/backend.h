#pragma once

#include "core/kernel.h"

namespace thalweg::cu {

const Backend& backend();

}  // namespace thalweg::cu
