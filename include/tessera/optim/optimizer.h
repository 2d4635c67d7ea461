// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Updates flat ranges of parameters. Strategies decide which ranges a rank owns; optimizers know
/// nothing of ranks.
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tessera/model/update_rule.h"

namespace tessera {

/// A contiguous piece of a flat parameter. All tensors are 1-D with the same number of elements and
/// keep their addresses.
struct OptimizerRange {
  /// fp32, updated in place: the master weights, or the parameter itself when it is fp32. Undefined
  /// where the master is split.
  at::Tensor parameter;
  at::Tensor gradient;  ///< any floating dtype; read only
  /// 16-bit copy of the master, written after the update; undefined in fp32 training.
  at::Tensor low_precision;
  bool weight_decay = true;  ///< whether the optimizer's own decay is for it
  bool small = false;        ///< see StateRules
  UpdateRule rule = {};      ///< what its group says instead
  /// Which parameters it holds pieces of: its first element is element `begin` of the buffer in
  /// which they are placed. Empty: that is not known.
  std::span<const PlacedParameter> placed = {};
  int64_t begin = 0;  ///< first element of the range in the buffer, see placed
  /// int16, of a split master (tessera/core/split_master.h), whose other half is low_precision,
  /// bf16; only where splits_masters() says so. Undefined: the master is whole.
  at::Tensor remainder = {};

  /// What is kept of the master beside low_precision.
  const at::Tensor& kept() const { return remainder.defined() ? remainder : parameter; }
  int64_t numel() const { return kept().numel(); }  ///< elements
  /// What decays it, given the optimizer's own decay.
  double decay(double configured) const {
    return rule.weight_decay.value_or(weight_decay ? configured : 0.0);
  }
};

/// The piece of a parameter that a range holds; what lies between pieces is padding.
struct RangePiece {
  const PlacedParameter& parameter;  ///< the entry of OptimizerRange::placed
  int64_t offset = 0;                ///< inside the parameter: of its first element
  int64_t begin = 0, numel = 0;      ///< first element in the range, and how many
};
/// The pieces of the range in order; none where `placed` is empty.
std::vector<RangePiece> pieces_of(const OptimizerRange& range);
/// For optimizers without them. Throws Error(kInvalidArgument) naming the group that sets betas.
void refuse_betas(std::span<const OptimizerRange> ranges, const std::string& optimizer);

/// Device scalars (fp32, one element), so that a step never waits for the host. Undefined members
/// mean 1 and 0.
struct StepScalars {
  at::Tensor learning_rate;   ///< the group's factor is not in it
  at::Tensor gradient_scale;  ///< multiplies every gradient: clip factor / loss scale
  at::Tensor skip;            ///< non-zero: change nothing, not even the step count
};

/// A tensor that update() keeps for a range, 1-D: an element for every `block` of the range's.
struct StateFormat {
  std::string name;                   ///< as checkpoints call it
  at::ScalarType dtype = at::kFloat;  ///< dtype of the kept elements
  int64_t block = 1;                  ///< elements of the range that share one

  /// The kept elements for a range of so many elements.
  int64_t numel(int64_t of_range) const { return (of_range + block - 1) / block; }
  /// Bytes that it keeps for an element of the range.
  double bytes_per_element() const {
    return static_cast<double>(c10::elementSize(dtype)) / static_cast<double>(block);
  }
};

/// A range whose state its owner keeps, for example in another memory.
struct ExternalRange {
  OptimizerRange range;           ///< whose parameter and gradient are updated
  std::vector<at::Tensor> state;  ///< as Optimizer::state_formats() lists them
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;  ///< tensors in a fixed order

/// Updates the ranges that it was made of.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual size_t range_count() const = 0;  ///< the number of ranges that it was made of
  /// Starts a step: counts it unless skipped. The scalars stay valid until the last update().
  virtual void begin_step(const StepScalars& scalars) = 0;
  /// Updates ranges [first, first + count).
  virtual void update(size_t first, size_t count) = 0;
  /// The same update for ranges that are none of this optimizer's own. Several threads may call it
  /// at once for disjoint ranges.
  virtual void update(std::span<const ExternalRange> ranges) const = 0;
  /// Of the tensors that update() keeps for every element, in the order of state(); they start as
  /// zeros.
  virtual std::vector<std::string> state_names() const = 0;
  /// The same with what else there is, for ranges of small parameters and others. Zeros to begin
  /// with. Unless it says otherwise, fp32 for every element.
  virtual std::vector<StateFormat> state_formats(bool small) const;
  /// The same for every range, whatever it holds; asked of an optimizer of an empty range, too.
  virtual StateRules state_rules() const { return {}; }
  /// Masters beside parameters in bf16 may come split (tessera/core/split_master.h). Whole ones are
  /// then settled before and after every update, so that the two forms never differ.
  virtual bool splits_masters() const { return false; }
  /// State tensors of a range by name (e.g. "exp_avg", "exp_avg_sq"), in the order of their
  /// formats.
  virtual NamedTensors state(size_t range) const = 0;
  /// Floating device scalar. Those of the library are fp64: one in fp32 stands still at 2^24.
  virtual at::Tensor step_count() const = 0;
  virtual int64_t state_bytes() const = 0;  ///< bytes of all state tensors
  /// Its kind and numbers as text, which must be the same on all ranks: attach() compares it.
  /// Unless it says otherwise, the class and the names of its state: say the numbers, too.
  virtual std::string describe() const;
};

/// The optimizer's scalars live where the first range does; a range may be empty. A strategy also
/// makes one of an empty range, to see what it asks for.
using OptimizerFactory = std::function<std::unique_ptr<Optimizer>(std::vector<OptimizerRange>)>;

/// What it asks of the ranges, and bytes that it keeps for an element of small parameters and of
/// others. Of with_matrices() the optimizer of elements is meant.
struct StateNeeds {
  StateRules rules;                   ///< see StateRules
  double bytes = 0, small_bytes = 0;  ///< bytes for an element, and for one of a small parameter
  bool splits_masters = false;        ///< Optimizer::splits_masters()

  /// The bytes for an element of either kind.
  double bytes_of(bool small) const { return small ? small_bytes : bytes; }
};
/// Makes an optimizer of an empty range and asks it.
StateNeeds state_needs(const OptimizerFactory& factory);
/// Optimizer::describe() of one of an empty range; of with_matrices() both optimizers.
std::string describe(const OptimizerFactory& factory);

}  // namespace tessera
