#pragma once

#include <nanobind/nanobind.h>

namespace thalweg::python {

void bind_operations(nanobind::module_& module);
void bind_model(nanobind::module_& module);

}  // namespace thalweg::python
