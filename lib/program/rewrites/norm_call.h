// SPDX-License-Identifier: MIT
#pragma once
// Calls of normalisation modules: a tensor, a weight and a bias go in, a tensor comes out.
#include <optional>
#include <vector>

#include "lib/program/rewrites/program_view.h"

namespace tessera::program {

struct NormCall {
  ValueId x = kNoValue, output = kNoValue;
  std::vector<ValueId> vectors;  // parameters [n], where n is x's last extent
  std::vector<double> epsilons;  // small numbers among the operators' arguments
  bool fits = false;             // one tensor in, one out, parameters [n]
};

// The call of a module whose class has "Norm" in its name and that ends in this node, or an
// operator of ATen outside such a module; nullopt: neither.
std::optional<NormCall> norm_call(const ProgramView& view, size_t anchor);

}  // namespace tessera::program
