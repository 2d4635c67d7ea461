// SPDX-License-Identifier: MIT
#pragma once
// Learning rates over time.
#include <nanobind/nanobind.h>

namespace tessera::python {

void bind_schedule(nanobind::module_& module);

}  // namespace tessera::python
