// SPDX-License-Identifier: MIT
#pragma once
// Arithmetic on extents as Python does it: integers are exact, // and % round down, / gives a
// float.
#include <ATen/core/ivalue.h>

#include <string>
#include <vector>

namespace tessera::program {

// target: one of is_size_function(). Throws Error(kDataLoss) with the operands for a division by
// zero, an overflow, and for what is no number.
c10::IValue evaluate(const std::string& target, const std::vector<c10::IValue>& operands);

}  // namespace tessera::program
