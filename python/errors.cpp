// SPDX-License-Identifier: MIT
#include "python/errors.h"

#include <c10/util/Exception.h>

#include "lib/core/failure.h"
#include "tessera/core/error.h"

namespace tessera::python {
namespace {

namespace nb = nanobind;

PyObject* error_class = nullptr;  // owned by the interpreter for its lifetime

void raise(const std::exception& error) {
  const Failure failure = failure_of(&error);
  const nb::object exception = nb::handle(error_class)(failure.message);
  exception.attr("code") = error_code_name(failure.code);
  exception.attr("exit_code") = exit_code(failure.code);
  PyErr_SetObject(error_class, exception.ptr());
}

void translate(const std::exception_ptr& pointer, void*) {
  try {
    std::rethrow_exception(pointer);
  } catch (const Error& error) {
    raise(error);
  } catch (const c10::Error& error) {
    raise(error);
  }
}

}  // namespace

void bind_errors(nb::module_& module) {
  error_class = PyErr_NewExceptionWithDoc(
      "tessera.Error",
      "What happened, where and what to do. code: \"invalid argument\", \"out of memory\", \"bad "
      "data\", "
      "\"peer unavailable\", \"numerics\" or \"internal\"; exit_code: as of the programs.",
      PyExc_RuntimeError, nullptr);
  module.attr("Error") = nb::handle(error_class);
  nb::register_exception_translator(translate);
}

bool is_tessera_error(nb::handle value) {
  return value.is_valid() && PyObject_IsInstance(value.ptr(), error_class) == 1;
}

}  // namespace tessera::python
