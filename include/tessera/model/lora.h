// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// LoRA (Hu et al. 2021) with PEFT's names and defaults: beside a frozen matrix W [out, in] the
/// model trains A [r, in] and B [out, r], and computes with W + scale() B A.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera {

/// Initialisation of A; B starts as zero.
enum class LoraInit {
  kDefault,   ///< as torch::nn::Linear: uniform within 1 / sqrt(in)
  kGaussian,  ///< normal with deviation 1 / r
};

/// LoRA configuration. A module is a layer's checkpoint name, e.g.
/// "model.layers.0.self_attn.q_proj": the stored name of its weight without ".weight".
struct LoraRule {
  int64_t r = 8;                       ///< rank of A and B, at least 1
  double alpha = 8;                    ///< numerator of scale()
  double dropout = 0;                  ///< dropout of A's input
  bool use_rslora = false;             ///< whether scale() divides by sqrt(r)
  LoraInit init = LoraInit::kDefault;  ///< initialisation of A
  /// Names or suffixes of names, such as "q_proj"; {"all-linear"}: all linear layers but the output
  /// head; empty: ModelSpec::default_lora_targets.
  std::vector<std::string> target_modules;
  /// Names or suffixes of names of tensors of all experts of a layer ("mlp.experts.down_proj"),
  /// which get one adapter each. Unless empty, target_modules empty means none, and target_modules
  /// never means layers of single experts. Not with dropout.
  std::vector<std::string> target_parameters;
  /// Suffixes of names of modules that are fully trained.
  std::vector<std::string> modules_to_save;

  double scale() const;     ///< alpha / r, or alpha / sqrt(r) with use_rslora
  bool all_linear() const;  ///< whether target_modules is {"all-linear"}
  /// Whether the module gets an adapter: a target is its name or a suffix after a dot, and it is
  /// not fully trained. all-linear: every module; the block knows which are linear.
  bool targets(std::string_view module) const;
  /// Whether the parameter with this stored name is among target_parameters, and not fully trained.
  bool targets_parameter(std::string_view name) const;
  /// Whether this one target matches the module.
  static bool matches(std::string_view module, std::string_view target);
  /// Whether the module, or the parameter with this stored name, is part of modules_to_save.
  bool saves(std::string_view name) const;
};

/// PEFT's prefix of names in adapter_model.safetensors.
inline constexpr std::string_view kLoraPrefix = "base_model.model.";
/// Suffixes of the stored names of A and B.
inline constexpr std::string_view kLoraA = "lora_A.weight", kLoraB = "lora_B.weight";

/// Whether a block's parameter is part of an adapter.
bool is_adapter(std::string_view parameter);
/// "<module>.weight" -> "<module>.<matrix>", where matrix is kLoraA or kLoraB.
std::string adapter_name(const std::string& weight, std::string_view matrix);

/// Initial adapter matrices of a module, whole, fp32 on the CPU; on meta only shapes. They have
/// their own random stream, so other weights of the block are equal with and without adapters.
struct LoraMatrices {
  at::Tensor a, b;  ///< [r, in], [out, r]
};
/// Draws the matrices of `module` in block `block_index`, with a weight [out, in], from
/// context.seed.
LoraMatrices lora_matrices(const BuildContext& context, size_t block_index,
                           const std::string& module, int64_t out, int64_t in);

/// The model with adapters, and everything else frozen except modules_to_save. Blocks create
/// adapters: those of language models, and those of from_module() and from_sequential() for every
/// torch::nn::Linear with its own weight. The latter compute with W + scale() B A, at the cost of
/// W's weight gradient, and do not support dropout. A custom block creates them if
/// context.lora->targets(module): parameters adapter_name("<module>.weight", ...) with values of
/// lora_matrices(), sliced like their matrix.
///
/// Stored names are PEFT's: "base_model.model.<module>.lora_A.weight"; fully trained modules have
/// the same prefix. A tensor of all experts, "<layer>.experts.<tensor>", has the names of PEFT's
/// target_parameters: "base_model.model.<layer>.experts.lora_A.weight", and
/// "....experts.base_layer.lora_A.weight" for the first of two. Builds every block once
/// (parameters_of()). saved: source of the trained parameters, by stored name; null: adapters are
/// random and fully trained modules come from the base. Throws Error(kInvalidArgument) for r < 1,
/// for a target that matches nothing (with the nearest name) or no linear layer, for a tied weight
/// among targets or modules_to_save, and for dropout with target_parameters.
ModelSpec add_lora(ModelSpec model, LoraRule rule,
                   std::shared_ptr<const TensorSource> saved = nullptr);

}  // namespace tessera
