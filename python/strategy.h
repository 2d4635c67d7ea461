// SPDX-License-Identifier: MIT
#pragma once
// The class Strategy: a model under a strategy, its steps and its state.
#include <nanobind/nanobind.h>

namespace tessera::python {

void bind_strategy(nanobind::module_& module);

}  // namespace tessera::python
