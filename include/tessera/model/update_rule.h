// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// How the optimizer treats a parameter, and which parameters a flat buffer holds.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// Made by with_groups() (tessera/model/parameter_groups.h).
struct UpdateRule {
  std::string group;                   ///< empty: none
  double lr_factor = 1;                ///< of the step's learning rate
  std::optional<double> weight_decay;  ///< instead of the optimizer's, whatever the shape
  std::optional<std::pair<double, double>> betas;  ///< instead of the optimizer's
  /// An optimizer of whole matrices updates it; set by strategies for the optimizer they are given.
  bool whole_matrix = false;
  bool operator==(const UpdateRule&) const = default;  ///< compares all members
};

/// What an optimizer asks of the pieces of parameters that it is given. block: elements that share
/// what is kept for them, counted from each parameter's begin; pieces begin with one.
/// small_numel: of parameters with fewer elements (of the whole one) less is shared, and of those
/// with Parameter::fp32_state where block is above 1; pieces of such and of others come in ranges
/// of their own.
struct StateRules {
  int64_t block = 1;                                   ///< see above; in elements
  int64_t small_numel = 0;                             ///< see above; in elements
  bool operator==(const StateRules&) const = default;  ///< compares both members
};

/// A parameter in a buffer of several.
struct PlacedParameter {
  std::string name;              ///< "block.parameter"; of tied ones the owner's
  std::vector<int64_t> shape;    ///< of the whole parameter
  int64_t begin = 0, numel = 0;  ///< in the buffer; on a tensor axis of the rank's slice
};

}  // namespace tessera
