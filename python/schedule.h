// SPDX-License-Identifier: MIT
#pragma once
// Learning-rate schedules for Python.
#include <nanobind/nanobind.h>

namespace tessera::python {

void bind_schedule(nanobind::module_& module);

}  // namespace tessera::python
