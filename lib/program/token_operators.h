// SPDX-License-Identifier: MIT
#pragma once
// Operators by what they do to the positions of their input.
#include <set>
#include <string>

namespace tessera::program {

// Each element by itself; other tensors among the arguments are numbers.
const std::set<std::string>& elementwise_operators();
// Two operands, which broadcast.
const std::set<std::string>& broadcasting_operators();
// Along "dim".
const std::set<std::string>& reducing_operators();
// Along the last dimension, with parameters: products and norms.
const std::set<std::string>& last_dimension_operators();

}  // namespace tessera::program
