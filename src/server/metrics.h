#pragma once

#include <string>

#include "thalweg/engine.h"

namespace thalweg::server {

// In Prometheus' text format.
std::string metrics_text(const EngineStats& stats);

}  // namespace thalweg::server
