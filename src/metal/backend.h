#pragma once

#include "core/kernel.h"

namespace thalweg::metal {

const Backend& backend();

}  // namespace thalweg::metal
