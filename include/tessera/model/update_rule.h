// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Update rules of parameters, and the layout of parameters in a flat buffer.
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace tessera {

/// Optimizer settings of one parameter, made by with_groups() (tessera/model/parameter_groups.h).
struct UpdateRule {
  std::string group;                               ///< empty: none
  double lr_factor = 1;                            ///< factor of the step's learning rate
  std::optional<double> weight_decay;              ///< replaces the optimizer's, for any shape
  std::optional<std::pair<double, double>> betas;  ///< replaces the optimizer's
  /// Set by strategies: a matrix optimizer (e.g. Muon) updates the parameter as a whole.
  bool whole_matrix = false;
  bool operator==(const UpdateRule&) const = default;  ///< compares all members
};

/// Requirements of an optimizer on its pieces of parameters. block: elements that share state,
/// counted from each parameter's start; pieces start with a block. small_numel: whole parameters
/// with fewer elements share less state, as do those with Parameter::fp32_state when block > 1.
/// Their pieces come in separate ranges.
struct StateRules {
  int64_t block = 1;                                   ///< in elements, see above
  int64_t small_numel = 0;                             ///< in elements, see above
  bool operator==(const StateRules&) const = default;  ///< compares both members
};

/// A parameter in a flat buffer.
struct ParameterRange {
  std::string name;              ///< "block.parameter"; for tied ones the owner's
  std::vector<int64_t> shape;    ///< shape of the whole parameter
  int64_t begin = 0, numel = 0;  ///< range in the buffer; on a tensor axis that of the rank's slice
};

}  // namespace tessera
