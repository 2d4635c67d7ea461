// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// The parameters of one or more blocks as a strategy handles them: gathered, reduced and updated
/// together.
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/sharding/flat_layout.h"

namespace tessera {

/// Owned by the strategy; the parameter and gradient stores keep the buffers.
struct ParameterUnit {
  std::string name;                 ///< for messages: that of its first block
  FlatLayout layout;                ///< where its parameters lie
  std::vector<std::string> blocks;  ///< by entry of the layout: the owning block's name
  /// Handles to give storage to, by entry of the layout: the owner's, then aliases of tied
  /// parameters in other blocks.
  std::vector<std::vector<at::Tensor>> handles;
  std::vector<bool> blank;              ///< by entry: Parameter::blank_gradient of all its handles
  std::vector<PlacedParameter> placed;  ///< by entry
  int uses = 1;                         ///< blocks whose forward reads these parameters
  /// Its parameters are frozen: gathered like others, but without gradients, optimizer and updates.
  bool frozen = false;
  /// An optimizer of whole matrices updates its parameters.
  bool matrices = false;
  /// It may be in use whatever else is, because it has several users or other stages hold it too;
  /// else it takes turns in buffers, in the order of `turn`. Units of one turn belong to the same
  /// blocks or to neighbours: they travel together.
  bool apart = false;
  /// A table of one entry with two users: the first one's backward, which comes last, adds rows by
  /// ops::embedding() alone.
  bool ends_with_rows = false;
  size_t turn = 0;  ///< place among the units that take turns
};

/// Points the handles of all entries that start in [begin, end) at their views of flat, whose first
/// element is element begin of the layout.
void bind_parameters(const ParameterUnit& unit, const at::Tensor& flat, int64_t begin, int64_t end);
/// Points every handle's .grad at its view of flat, which holds the whole layout.
void bind_gradients(const ParameterUnit& unit, const at::Tensor& flat);

}  // namespace tessera
