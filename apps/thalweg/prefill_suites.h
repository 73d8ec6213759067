#pragma once

#include <string_view>

namespace thalweg::app {

// benchmarks/gdn_prefill_h200_published.csv
extern const std::string_view kPublishedPrefill;

}  // namespace thalweg::app
