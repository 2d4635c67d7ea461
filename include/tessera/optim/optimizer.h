// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Optimizers of flat ranges of parameters. Strategies decide which ranges a rank owns; optimizers
/// know nothing about ranks.
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

/// A contiguous piece of a flat parameter. All tensors are 1-D, of equal length, with constant
/// addresses.
struct OptimizerRange {
  /// fp32, updated in place: the master weights, or the fp32 parameter itself. Undefined if the
  /// master is split.
  at::Tensor parameter;
  at::Tensor gradient;  ///< any floating dtype; read only
  /// 16-bit copy of the master, written after the update; undefined in fp32 training.
  at::Tensor low_precision;
  bool weight_decay = true;  ///< whether the optimizer's own decay applies
  bool small = false;        ///< see StateRules
  UpdateRule rule = {};      ///< overrides of its group
  /// Parameters in the buffer in which the range starts at element `begin`. Empty: unknown.
  std::span<const ParameterRange> placed = {};
  int64_t begin = 0;  ///< first element of the range in the buffer, see placed
  /// int16 half of a split master (tessera/core/split_master.h); low_precision is the bf16 half.
  /// Requires splits_masters(). Undefined: the master is whole.
  at::Tensor remainder = {};

  /// The tensor kept for the master beside low_precision.
  const at::Tensor& kept() const { return remainder.defined() ? remainder : parameter; }
  int64_t numel() const { return kept().numel(); }  ///< number of elements
  /// The range's decay, from the optimizer's own.
  double decay(double configured) const {
    return rule.weight_decay.value_or(weight_decay ? configured : 0.0);
  }
};

/// A parameter's piece in a range; elements between pieces are padding.
struct RangePiece {
  const ParameterRange& parameter;  ///< the entry of OptimizerRange::placed
  int64_t offset = 0;               ///< index of its first element in the parameter
  int64_t begin = 0, numel = 0;     ///< first element in the range, and length
};
/// Pieces of the range in order; none if `placed` is empty.
std::vector<RangePiece> pieces_of(const OptimizerRange& range);
/// For optimizers without betas: throws Error(kInvalidArgument) with the group that sets them.
void refuse_betas(std::span<const OptimizerRange> ranges, const std::string& optimizer);

/// Scalars of a step on the device (fp32, one element), so that no step waits for the host.
/// Undefined: a scale of 1, no skip.
struct StepScalars {
  at::Tensor learning_rate;   ///< without the group's factor
  at::Tensor gradient_scale;  ///< multiplies every gradient: clip factor / loss scale
  at::Tensor skip;            ///< non-zero: change nothing, not even the step count
};

/// Format of a 1-D tensor that update() keeps for a range: one element per `block` of the range's.
struct StateFormat {
  std::string name;                   ///< name in checkpoints
  at::ScalarType dtype = at::kFloat;  ///< dtype of the kept elements
  int64_t block = 1;                  ///< elements of the range that share one element

  /// Number of elements kept for a range of this length.
  int64_t numel(int64_t of_range) const { return (of_range + block - 1) / block; }
  /// Bytes kept per element of the range.
  double bytes_per_element() const {
    return static_cast<double>(c10::elementSize(dtype)) / static_cast<double>(block);
  }
};

/// A range whose state its owner keeps, for example in other memory.
struct ExternalRange {
  OptimizerRange range;           ///< parameter and gradient to update
  std::vector<at::Tensor> state;  ///< as Optimizer::state_formats() lists them
};

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;  ///< tensors in a fixed order

/// Optimizer of the ranges given to its factory.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  virtual size_t range_count() const = 0;  ///< number of its own ranges
  /// Starts a step: counts it unless skipped. The scalars stay valid until the last update().
  virtual void begin_step(const StepScalars& scalars) = 0;
  /// Updates ranges [first, first + count).
  virtual void update(size_t first, size_t count) = 0;
  /// Updates ranges that are not this optimizer's own. Thread-safe for disjoint ranges.
  virtual void update(std::span<const ExternalRange> ranges) const = 0;
  /// Names of the state tensors, in the order of state(); they start as zeros.
  virtual std::vector<std::string> state_names() const = 0;
  /// Formats of all state tensors, for ranges of small or other parameters; they start as zeros.
  /// Default: state_names() in fp32, one per element.
  virtual std::vector<StateFormat> state_formats(bool small) const;
  /// Requirements on ranges, equal for all of them; also asked of an optimizer of an empty range.
  virtual StateRules state_rules() const { return {}; }
  /// Whether it supports split masters beside bf16 parameters (tessera/core/split_master.h). Whole
  /// masters are then settled before and after every update, so both forms agree.
  virtual bool splits_masters() const { return false; }
  /// State tensors of a range by name (e.g. "exp_avg", "exp_avg_sq"), in the order of
  /// state_formats().
  virtual NamedTensors state(size_t range) const = 0;
  /// Number of steps, as a floating device scalar. The library uses fp64: fp32 stops counting at
  /// 2^24.
  virtual at::Tensor step_count() const = 0;
  virtual int64_t state_bytes() const = 0;  ///< bytes of all state tensors
  /// Kind and hyperparameters as text, which attach() compares across ranks. Default: class and
  /// names of its state; override it to include hyperparameters.
  virtual std::string describe() const;
};

/// Makes an optimizer of these ranges. Its scalars live on the first range's device; a range may be
/// empty. Strategies also make one of an empty range, to query its requirements.
using OptimizerFactory = std::function<std::unique_ptr<Optimizer>(std::vector<OptimizerRange>)>;

/// Requirements of an optimizer and its state bytes per element. For with_matrices(), those of the
/// element-wise optimizer.
struct StateNeeds {
  StateRules rules;                   ///< see StateRules
  double bytes = 0, small_bytes = 0;  ///< bytes per element, and per element of a small parameter
  bool splits_masters = false;        ///< Optimizer::splits_masters()

  /// Bytes per element of either kind.
  double bytes_of(bool small) const { return small ? small_bytes : bytes; }
};
/// Queries the requirements of an optimizer of an empty range.
StateNeeds state_needs(const OptimizerFactory& factory);
/// Optimizer::describe() of the factory's optimizer; for with_matrices(), both.
std::string describe(const OptimizerFactory& factory);

}  // namespace tessera
