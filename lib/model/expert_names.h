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

// Adapters of a tensor of all experts (LoraConfig.target_parameters), with PEFT's names.
// The tensor's name in version 5 of transformers, whose folder is "mlp" in Mixtral, too.
std::string parameter_of_experts(const std::string& all_experts);
// The module of its adapter: "<layer>.experts", or of gate_up_proj, where down_proj has one, too,
// "<layer>.experts.base_layer", since the wrapper of down_proj wraps its wrapper.
std::string adapted_experts(const std::string& parameter, bool down_too);
// Whether an adapter's matrix of this name is of a tensor of all experts.
bool is_of_all_experts(const std::string& adapter);

}  // namespace tessera
