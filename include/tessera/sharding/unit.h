// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Units: parameters of one or more blocks that are gathered, reduced and updated together.
#include <ATen/core/Tensor.h>

#include <string>
#include <vector>

#include "tessera/sharding/flat_layout.h"

namespace tessera {

class Communicator;

/// A unit of parameters, owned by the strategy; parameter and gradient stores keep the buffers.
struct ParameterUnit {
  std::string name;                 ///< name in messages: its first block's
  FlatLayout layout;                ///< layout of its parameters
  std::vector<std::string> blocks;  ///< by entry of the layout: the owning block's name
  /// By entry of the layout: the parameter's handles, the owner's first, then those of tied aliases
  /// in other blocks.
  std::vector<std::vector<at::Tensor>> handles;
  std::vector<bool> blank;  ///< by entry: Parameter::lazy_zero_gradient of all its handles
  std::vector<ParameterRange> placed;  ///< by entry
  int uses = 1;                        ///< number of blocks whose forward reads these parameters
  /// Frozen parameters: gathered, but without gradients, optimizer state and updates.
  bool frozen = false;
  /// Whether a matrix optimizer updates its parameters.
  bool matrices = false;
  /// Has its own buffer, because several blocks or other stages use it at any time. Other units
  /// share buffers in the order of `gather_group`; those of one gather_group belong to the same or
  /// neighbouring blocks and are gathered and reduced together.
  bool apart = false;
  /// An embedding table tied to a second use: the backward of its first use, which runs last, adds
  /// rows by ops::embedding() only.
  bool ends_with_rows = false;
  size_t gather_group = 0;  ///< index among the units that share buffers
  /// Frozen matrices that are stored in 8 bits: by entry, fp32 powers of two, each at a multiple of
  /// 16 bytes; a value is its code times its scale. Undefined: stored in the compute dtype.
  at::Tensor scales;
  /// Trained matrices that training passes gather in 8 bits: by entry, the number of its product,
  /// whose weights have one scale. Empty: gathered in the compute dtype.
  std::vector<size_t> products;
  /// Ranks that own one shard each, and whose gradients are summed, of a unit of experts on an
  /// expert axis: the data ranks with the same experts. Null: the strategy's.
  Communicator* holders = nullptr;

  /// The ranks among which stores share the unit; usual: the strategy's.
  Communicator& ranks(Communicator& usual) const { return holders == nullptr ? usual : *holders; }
  bool coded() const { return scales.defined(); }           ///< whether stores keep 8-bit codes
  bool gathers_codes() const { return !products.empty(); }  ///< whether training passes gather them
};

/// Dtype of the unit's stored values.
at::ScalarType stored_dtype(const ParameterUnit& unit, at::ScalarType compute);
/// The whole unit as it is stored: in the compute dtype, or as codes.
at::Tensor stored_values(const ParameterUnit& unit, const at::Tensor& full_fp32,
                         at::ScalarType compute);
/// The same bytes in a dtype that collectives take.
at::Tensor as_sent(const at::Tensor& values);
/// Values of codes [layout.numel()], in place: multiplies each entry by its scale.
void scale_codes(const ParameterUnit& unit, const at::Tensor& codes);

/// Sets the handles of all entries that start in [begin, end) to views of flat, which starts at
/// element begin of the layout.
void bind_parameters(const ParameterUnit& unit, const at::Tensor& flat, int64_t begin, int64_t end);
/// Sets every handle's .grad to its view of flat, which holds the whole layout.
void bind_gradients(const ParameterUnit& unit, const at::Tensor& flat);

}  // namespace tessera
