// The module thalweg._core: everything that needs the library. Users call python/thalweg.

#include <nanobind/nanobind.h>

#include <nanobind/stl/string.h>

#include <exception>

#include "extension/bindings.h"
#include "thalweg/error.h"

namespace nb = nanobind;

NB_MODULE(_core, module) {
  module.doc() = "What thalweg's Python code calls; use thalweg.ops and thalweg.Model.";

  static nb::object error_type = nb::exception<thalweg::Error>(module, "Error", PyExc_ValueError);
  error_type.attr("__doc__") =
      "Arguments break a contract, or a file is unusable. Nothing was written.\n\n"
      "`operation` and `argument` are the names in the message.";
  error_type.attr("__module__") = "thalweg";
  // Later translators run first: this one adds the attributes.
  nb::register_exception_translator(
      [](const std::exception_ptr& thrown, void* type) {
        try {
          std::rethrow_exception(thrown);
        } catch (const thalweg::Error& error) {
          nb::object value = nb::borrow(static_cast<PyObject*>(type))(error.what());
          value.attr("operation") = error.operation();
          value.attr("argument") = error.argument();
          PyErr_SetObject(static_cast<PyObject*>(type), value.ptr());
        }
      },
      error_type.ptr());

  thalweg::python::bind_operations(module);
  thalweg::python::bind_ranks(module);
  thalweg::python::bind_model(module);
  thalweg::python::bind_engine(module);
}
