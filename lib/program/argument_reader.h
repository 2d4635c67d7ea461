// SPDX-License-Identifier: MIT
#pragma once
// One argument of a node, as torch.export writes it: an object with one member that says the kind.
#include <map>
#include <string>

#include "lib/program/graph.h"
#include "tessera/core/json.h"

namespace tessera::program {

// The values that can be named at a place of the file.
using Scope = std::map<std::string, ValueId>;

// The only member of a union, and its kind. Throws unless there is exactly one.
std::pair<std::string, Json> kind_of(const Json& json);

// Throws Error(kDataLoss) with the place in the file for a kind that is unknown, a name that is not
// in the scope, and lists that are too long.
Argument read_argument(const Json& json, const Scope& scope);

// A dtype as the file counts them.
at::ScalarType read_dtype(const Json& json);

}  // namespace tessera::program
