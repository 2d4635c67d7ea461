// SPDX-License-Identifier: MIT
#pragma once
// The library's errors as Python's exception tessera.Error.
#include <nanobind/nanobind.h>

namespace tessera::python {

// Adds the class Error (a RuntimeError) with .code, the canonical name, and .exit_code. LibTorch's
// errors become it, too.
void bind_errors(nanobind::module_& module);
bool is_tessera_error(nanobind::handle value);

}  // namespace tessera::python
