// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Low-rank adapters (Hu et al. 2021) with PEFT's names and defaults: beside a frozen matrix W
/// [out, in] the model trains A [r, in] and B [out, r], and computes with W + scale() B A.
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera {

/// How A is drawn; B is zero.
enum class LoraInit {
  kDefault,   ///< as torch::nn::Linear draws: uniform within 1 / sqrt(in)
  kGaussian,  ///< normal with deviation 1 / r
};

/// A module is a layer by its name in the checkpoint, e.g. "model.layers.0.self_attn.q_proj": the
/// stored name of its weight without ".weight".
struct LoraRule {
  int64_t r = 8;                       ///< rank of A and B, at least 1
  double alpha = 8;                    ///< numerator of scale()
  double dropout = 0;                  ///< of what goes into A
  bool use_rslora = false;             ///< whether scale() divides by sqrt(r)
  LoraInit init = LoraInit::kDefault;  ///< how A is drawn
  /// Names or ends of names, as "q_proj"; {"all-linear"}: all linear layers but the output head;
  /// empty: ModelSpec::default_lora_targets.
  std::vector<std::string> target_modules;
  /// Ends of names of modules that are trained in full.
  std::vector<std::string> modules_to_save;

  double scale() const;     ///< alpha / r, or alpha / sqrt(r) with use_rslora
  bool all_linear() const;  ///< whether target_modules is {"all-linear"}
  /// Whether the module gets an adapter: a target is its name or stands in it after a dot at the
  /// end, and it is not trained in full. all-linear: every module; the block knows which are
  /// linear.
  bool targets(std::string_view module) const;
  /// The same for a given target alone.
  static bool matches(std::string_view module, std::string_view target);
  /// Whether the module, or the parameter with this stored name, is part of modules_to_save.
  bool saves(std::string_view name) const;
};

/// PEFT's prefix of what adapter_model.safetensors holds.
inline constexpr std::string_view kLoraPrefix = "base_model.model.";
/// The ends of the stored names of A and B.
inline constexpr std::string_view kLoraA = "lora_A.weight", kLoraB = "lora_B.weight";

/// Whether a block's parameter of this name belongs to an adapter.
bool is_adapter(std::string_view parameter);
/// "<module>.weight" -> "<module>.<matrix>", where matrix is kLoraA or kLoraB.
std::string adapter_name(const std::string& weight, std::string_view matrix);

/// The whole matrices of a module's adapter as they are drawn, fp32 on the CPU; shapes alone on the
/// meta device. They have a stream of their own: other weights of the block are the same with and
/// without adapters.
struct LoraMatrices {
  at::Tensor a, b;  ///< [r, in], [out, r]
};
/// The matrices for `module` of block `block_index`, whose weight is [out, in], drawn from
/// context.seed.
LoraMatrices lora_matrices(const BuildContext& context, size_t block_index,
                           const std::string& module, int64_t out, int64_t in);

/// The model with adapters, and everything else frozen but modules_to_save. Blocks make them: those
/// of language models, and of from_module() and from_sequential() for every torch::nn::Linear whose
/// weight is its own. The latter compute with W + scale() B A, which costs the weight gradient of
/// W, and refuse dropout. A block of one's own makes them where context.lora->targets(module) says
/// so: parameters adapter_name("<module>.weight", ...) with values of lora_matrices(), cut as their
/// matrix is.
///
/// Stored names are PEFT's: "base_model.model.<module>.lora_A.weight", and with the same prefix
/// what is trained in full. Every block is built once to learn what it has (parameters_of()).
/// Throws Error(kInvalidArgument) for r < 1, for a target that matches nothing (with the nearest
/// name) or no linear layer, and for a tied weight among targets or modules_to_save.
/// saved: what is trained is read from there by its stored names, instead of being drawn; null: it
/// is drawn, or where it is part of the base read with that.
ModelSpec add_lora(ModelSpec model, LoraRule rule,
                   std::shared_ptr<const TensorSource> saved = nullptr);

}  // namespace tessera
