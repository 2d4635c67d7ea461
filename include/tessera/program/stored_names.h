// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Names and parts under which model files hold the parameters of an exported program.
#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "tessera/core/json.h"

namespace tessera {

/// JSON text: for every parameter and buffer of the directory's program, "block.parameter" and how
/// the Hub's files store it: a name, or program.json's form of several tensors. A parameter that is
/// a part of a stored tensor keeps the program's own name.
std::string stored_names(const std::string& directory);

/// The tensors that files hold for this value: one of the name, or the parts of a stack, a concat
/// or a transpose, which are views. stored: a value of stored_names(). Throws Error(kDataLoss) with
/// the place where the value cannot be cut so.
std::vector<std::pair<std::string, at::Tensor>> stored_tensors(const Json& stored,
                                                               const at::Tensor& value);

}  // namespace tessera
