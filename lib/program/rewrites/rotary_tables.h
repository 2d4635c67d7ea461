// SPDX-License-Identifier: MIT
#pragma once
// Rotary tables of a program as tessera's operators take them.
#include <ATen/core/Tensor.h>

#include "tessera/ops/attention.h"

namespace tessera::program {

// Table [sequence, r / 2] of the program's [..., sequence, r], which has every angle twice: in its
// halves, or in neighbours if paired. fp32, or fp64 for fp64.
at::Tensor half_table(const at::Tensor& table, bool paired);

// halved: both are half_table()'s already.
ops::RotaryTables rotary_tables_of(const at::Tensor& cos, const at::Tensor& sin, bool halved,
                                   bool paired);

}  // namespace tessera::program
