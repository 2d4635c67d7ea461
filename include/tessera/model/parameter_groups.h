// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Parameters that the optimizer treats otherwise than its configuration says. Every strategy gives
/// the same numbers with them, and checkpoints do not know of them.
///   model = with_groups(model, {{.name = "head", .matches = named("head"), .lr_factor = 10}});
#include <c10/util/ArrayRef.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera {

/// Asked once for every parameter, with its whole shape; of tied ones for the owner.
using ParameterPredicate = std::function<bool(
    const std::string& block, const std::string& parameter, c10::IntArrayRef shape)>;

/// What is treated otherwise, and how.
struct ParameterGroup {
  std::string name;                                     ///< for messages; unique
  ParameterPredicate matches;                           ///< which parameters belong to it
  double lr_factor = 1;                                 ///< above 0
  std::optional<double> weight_decay = {};              ///< instead of the optimizer's
  std::optional<std::pair<double, double>> betas = {};  ///< instead of the optimizer's
  /// Moments in fp32 under MomentsDtype::kInt8, too; unset: as the blocks say, those of embeddings
  /// and heads.
  std::optional<bool> fp32_state = {};
  bool frozen = false;  ///< alone, without the four above
};

/// Whether `part` is "block.parameter", or whole words of it between dots: named("h.1") has
/// "h.1.ln.weight", but not "h.10.ln.weight".
ParameterPredicate named(const std::string& part);

/// Every block is built once to learn what it has (parameters_of()). Throws Error(kInvalidArgument)
/// naming group and parameter for a group that matches nothing that is trained, and for two groups
/// that match one parameter.
ModelSpec with_groups(ModelSpec model, std::vector<ParameterGroup> groups);

/// Which parameters the optimizer's weight decay is for; a group's own is for all of the group.
enum class DecayRule {
  kMatrices,  ///< the library's: as the blocks say, those of two dimensions and more
  kAll,       ///< torch's
};
///@{
/// The model with weight decay for what the rule, or the predicate, chooses.
ModelSpec with_decay(ModelSpec model, DecayRule rule);
ModelSpec with_decay(ModelSpec model, ParameterPredicate decays);
///@}

}  // namespace tessera
