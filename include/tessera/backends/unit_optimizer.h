// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Optimizer of a rank's shards: placement of masters and moments, and of the step.
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tessera/backends/strategy.h"
#include "tessera/core/split_master.h"
#include "tessera/optim/optimizer.h"
#include "tessera/sharding/gradient_store.h"
#include "tessera/sharding/parameter_store.h"

namespace tessera {

/// Inputs of a UnitOptimizer; everything outlives it.
struct UnitOptimizerContext {
  const std::vector<ParameterUnit>& units;  ///< the strategy's units, in order
  int shard_rank = 0;  ///< which shard this rank owns of layouts on the strategy's ranks
  at::ScalarType parameter_dtype =
      at::kFloat;                ///< dtype of the parameters that blocks compute with
  at::Device device = at::kCPU;  ///< device of parameters and gradients
  /// Estimate of the elements this rank will own; 0 when the model gives none.
  int64_t expected_numel = 0;
  double state_bytes = 8;  ///< optimizer bytes per element
  /// Masters may be split: parameters are bf16 and the optimizer supports it (Optimizer). adopt()
  /// gets settled fp32 values (see settle()); writes settle them again.
  bool splits_masters = false;
  double small_state_bytes = 8;  ///< optimizer bytes per element of a small parameter (StateRules)

  int shard_of(size_t unit) const;  ///< which shard of the unit's layout this rank owns
};

/// A part of an optimizer's state tensor.
struct KeptTensor {
  StateFormat format;  ///< name, dtype and block
  at::Tensor value;    ///< 1-D, format.numel() of the range's elements
};
/// The elements of a state tensor of this format for a range that begins with a block.
FlatRange blocks_of(const StateFormat& format, const FlatRange& range);
/// One state tensor of a whole matrix.
struct MatrixState {
  size_t unit = 0, entry = 0;  ///< the unit, and the matrix's entry in its layout
  std::string kind;            ///< "momentum_buffer"
  std::vector<int64_t> shape;  ///< shape of the state, which tensor parallelism does not slice
  at::Tensor value;            ///< fp32, 1-D
};

/// Optimizer of a strategy's units, owned by one ShardingStrategy. Order of calls: adopt() for
/// every unit in order; prepare(); per step gradient_ready() for every unit, again after
/// gradients_reopened(); step(); complete() before each use of a unit's parameters.
class UnitOptimizer {
 public:
  virtual ~UnitOptimizer() = default;
  /// Takes this rank's part of the unit's initial values: full_fp32 is [layout.numel()] on the
  /// device.
  virtual void adopt(size_t unit, const at::Tensor& full_fp32) = 0;
  /// Connects the stores, once all units are adopted and the stores complete; they outlive the
  /// optimizer.
  virtual void prepare(ParameterStore& parameters, GradientStore& gradients,
                       const OptimizerFactory& factory) = 0;
  /// The unit's owned gradient is complete for the step, on the current stream.
  virtual void gradient_ready(size_t unit) = 0;
  /// Gradients that were ready will change, on the current stream. step() uses their new values,
  /// with or without another gradient_ready().
  virtual void gradients_reopened() {}
  /// Starts the update of every unit; the scalars stay valid until the next step().
  virtual void step(const StepScalars& scalars) = 0;
  /// Waits until the unit's update is done and published (for the current stream). Ranks call in
  /// the same order.
  virtual void complete(size_t unit) = 0;
  /// Master weights of the owned part of a segment, on any device: fp32, or split where the context
  /// allows it. The bf16 half of split ones is the parameter store's own shard.
  virtual MasterValues master(size_t unit, size_t segment) const = 0;
  /// Optimizer state for a part of an owned segment, as Optimizer::state_formats(). A part is a
  /// range of the unit's flat buffer with equal treatment that begins with a block. Like master()
  /// it may be read and written once the unit is complete, and its memory stays.
  virtual std::vector<KeptTensor> state(size_t unit, size_t segment,
                                        const FlatRange& part) const = 0;
  /// Optimizer::step_count(), once the last step has counted.
  virtual at::Tensor step_count() const = 0;
  /// State of the matrices that this rank owns (tessera/optim/matrix_optimizer.h); accessed like
  /// state().
  virtual std::vector<MatrixState> matrix_states() const { return {}; }
  /// Called after writing into the tensors of state(), step_count() and matrix_states().
  virtual void restored() {}
  /// Adds its bytes to memory's categories.
  virtual void add_memory(StrategyMemory& memory) const = 0;
  /// Transfers of the latest step whose updates were used; of the only step, which it first
  /// finishes.
  virtual OffloadReport report() { return {}; }
};

/// Creates the optimizer of one strategy.
using UnitOptimizerFactory =
    std::function<std::unique_ptr<UnitOptimizer>(const UnitOptimizerContext&)>;

/// All state on the device, updated unit by unit on the current stream.
class DeviceOptimizer : public UnitOptimizer {
 public:
  /// Everything in the context outlives the optimizer.
  explicit DeviceOptimizer(const UnitOptimizerContext& context) : context_(context) {}
  void adopt(size_t unit, const at::Tensor& full_fp32) override;
  void prepare(ParameterStore& parameters, GradientStore& gradients,
               const OptimizerFactory& factory) override;
  void gradient_ready(size_t) override {}
  void step(const StepScalars& scalars) override;
  void complete(size_t) override {}
  MasterValues master(size_t unit, size_t segment) const override;
  std::vector<KeptTensor> state(size_t unit, size_t segment, const FlatRange& part) const override;
  at::Tensor step_count() const override { return optimizer_->step_count(); }
  void add_memory(StrategyMemory& memory) const override;

 private:
  UnitOptimizerContext context_;
  ParameterStore* parameters_ = nullptr;
  /// By unit, compact: fp32 masters, or the remainders of split ones; undefined when parameters are
  /// fp32.
  std::vector<at::Tensor> masters_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<std::pair<size_t, size_t>> ranges_;  ///< by unit: first, count
  std::vector<FlatRange> places_;  ///< by range: its place in the unit's flat buffer
  std::vector<bool> small_;        ///< by range: see StateRules
};

/// The rank's shard of a flat buffer, segments end to end: [shard_numel].
at::Tensor compact_shard(const FlatLayout& layout, const at::Tensor& full, int shard_rank);

}  // namespace tessera
