// SPDX-License-Identifier: MIT
#pragma once
// Experts of a layer as transformers stores them. Since version 5 it computes with one tensor of
// all experts, "<layer>.mlp.experts.gate_up_proj" [experts, 2 I, h] and
// "<layer>.mlp.experts.down_proj" [experts, h, I]; files have one tensor an expert, by the names of
// version 4.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/model/lora.h"
#include "tessera/model/model_spec.h"

namespace tessera {

// Names of the tensors of one expert that make up a part of the tensor of all, in order of its
// rows. Mixtral's folder "block_sparse_moe" has names of its own. Empty for another name.
std::vector<std::string> names_of_expert(const std::string& all_experts, int64_t expert);
// The name under which version 5 keeps a parameter in a folder "block_sparse_moe" of version 4, or
// the other way round; "" for another name.
std::string other_expert_folder(const std::string& name);

// The tensors that files hold for a parameter of a built-in model: those of every expert, expert by
// expert, or one of the stored name.
std::vector<std::string> names_in_files(const ModelSpec& model, const ParameterInfo& parameter);

// An adapter's value as its file holds it. Of a tensor of all E experts (is_of_all_experts()) PEFT
// stores A [E, r, in] as [E r, in], and B [E, out, r] as [out, r E] with the experts innermost;
// others are as they are. stored: the name in the file.
at::Tensor in_adapter_file(const std::string& stored, const at::Tensor& value);
std::vector<int64_t> shape_in_adapter_file(const std::string& stored, at::IntArrayRef shape);
// The other way round: a matrix in the file, of a parameter with this first size.
at::Tensor from_adapter_file(const std::string& stored, const at::Tensor& matrix, int64_t experts);

// JSON text of a built-in model with experts, for stored_tensors(): "block.parameter" of every
// parameter, and the names in files, which for experts and their adapters are those of version 4.
// "" without experts.
std::string stored_names_by_expert(const ModelSpec& model);

}  // namespace tessera
