#pragma once

#include "core/kernel.h"

namespace thalweg::cpu {

const Backend& backend();

}  // namespace thalweg::cpu
