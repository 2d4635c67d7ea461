// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Parameter groups with optimizer settings of their own. Results are equal under every strategy;
/// checkpoints do not contain groups.
///   model = with_groups(model, {{.name = "head", .matches = named("head"), .lr_factor = 10}});
#include <c10/util/ArrayRef.h>

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera {

/// Selects parameters by name and whole shape; called once for each, for tied ones with the owner.
using ParameterPredicate = std::function<bool(
    const std::string& block, const std::string& parameter, c10::IntArrayRef shape)>;

/// A group of parameters and its optimizer settings.
struct ParameterGroup {
  std::string name;                                     ///< for messages; unique
  ParameterPredicate matches;                           ///< selects the group's parameters
  double lr_factor = 1;                                 ///< factor of the learning rate, above 0
  std::optional<double> weight_decay = {};              ///< replaces the optimizer's
  std::optional<std::pair<double, double>> betas = {};  ///< replaces the optimizer's
  /// Keeps moments in fp32 under MomentsDtype::kInt8; unset: the blocks' choice, embeddings and
  /// heads.
  std::optional<bool> fp32_state = {};
  bool frozen = false;  ///< excludes the four settings above
};

/// Matches if `part` is "block.parameter", or whole words of it between dots: named("h.1") matches
/// "h.1.ln.weight", but not "h.10.ln.weight".
ParameterPredicate named(const std::string& part);

/// The model with these groups. Builds every block once (parameters_of()). Throws
/// Error(kInvalidArgument) with group and parameter if a group matches no trained parameter, or two
/// groups match one.
ModelSpec with_groups(ModelSpec model, std::vector<ParameterGroup> groups);

/// Parameters with the optimizer's weight decay; a group's own applies to the whole group.
enum class DecayRule {
  kMatrices,  ///< the blocks' choice: parameters of two and more dimensions
  kAll,       ///< all parameters, torch's default
};
///@{
/// The model with weight decay for the parameters that the rule, or the predicate, selects.
ModelSpec with_decay(ModelSpec model, DecayRule rule);
ModelSpec with_decay(ModelSpec model, ParameterPredicate decays);
///@}

}  // namespace tessera
