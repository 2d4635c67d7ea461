// SPDX-License-Identifier: MIT
#pragma once
// The class Strategy: a model under a strategy, its steps, and what is kept of it.
#include <nanobind/nanobind.h>

namespace tessera::python {

void bind_strategy(nanobind::module_& module);

}  // namespace tessera::python
