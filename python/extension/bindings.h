#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <string>

#include "thalweg/model.h"

namespace thalweg::python {

void bind_operations(nanobind::module_& module);
void bind_model(nanobind::module_& module);
void bind_engine(nanobind::module_& module);
void bind_ranks(nanobind::module_& module);

struct PyRanks {
  std::shared_ptr<Ranks> connected;
  int on_this_host = 1;
};

// Throws Error for a name that is none.
ModelOptions model_options_of(int threads, std::int64_t context, int sequences, int prefill_chunk, bool exact,
                              bool batch_invariant, bool prefetch, const nanobind::object& kv_type,
                              const std::string& state_type, const std::string& device, const std::string& draft,
                              int draft_max);

// `ranks` may be null. Of several, "cuda" is the GPU of the local rank, and threads that nobody asked for are this
// rank's share of the machine's.
void set_ranks(ModelOptions& options, const PyRanks* ranks, const std::string& rank_split, const std::string& device);

}  // namespace thalweg::python
