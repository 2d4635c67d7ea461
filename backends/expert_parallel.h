// SPDX-License-Identifier: MIT
#pragma once
// Expert axis: ranks that own a part of every layer's experts each.
#include <string>

#include "tessera/model/model_spec.h"

namespace tessera {

// Reason why so many ranks cannot divide the model's experts; empty if they can.
std::string expert_parallel_problem(const ModelSpec& model, int ranks);

// The model whose blocks are built for this axis (BuildContext::expert), which outlives it. Throws
// Error(kInvalidArgument) when the ranks cannot divide its experts.
ModelSpec on_expert_axis(ModelSpec model, Communicator& axis);

}  // namespace tessera
