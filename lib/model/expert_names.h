// SPDX-License-Identifier: MIT
#pragma once
// Names of experts' layers. A model computes with one tensor of all experts of a layer,
// "<layer>.experts.gate_up_proj" or "<layer>.experts.down_proj"; an expert's own linear layers are
// "<layer>.experts.3.gate_proj" and so on. Mixtral's folder "block_sparse_moe" has names of its
// own.
#include <cstdint>
#include <string>
#include <vector>

namespace tessera {

// The linear layers that a tensor of all experts holds, in order of its rows, without the expert's
// number: "<layer>.experts.gate_proj", "<layer>.experts.up_proj". Empty for another name.
std::vector<std::string> layers_of_experts(const std::string& all_experts);
// "<layer>.experts.gate_proj..." -> "<layer>.experts.3.gate_proj..."; other names as they are.
std::string name_of_expert(const std::string& name, int64_t expert);
// The other way round.
std::string without_expert(const std::string& name);

}  // namespace tessera
