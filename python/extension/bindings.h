#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

#include "thalweg/model.h"

namespace thalweg::python {

void bind_operations(nanobind::module_& module);
void bind_model(nanobind::module_& module);
void bind_engine(nanobind::module_& module);

// Throws Error for a name that is none.
ModelOptions model_options_of(int threads, std::int64_t context, int sequences, int prefill_chunk, bool exact,
                              bool prefetch, const nanobind::object& kv_type, const std::string& state_type,
                              const std::string& device, const std::string& draft, int draft_max);

}  // namespace thalweg::python
