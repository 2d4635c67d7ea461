// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Where masters and moments of a rank's shards live, and where the step runs.
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

/// What a UnitOptimizer works on; everything outlives it.
struct UnitOptimizerContext {
  const std::vector<ParameterUnit>& units;  ///< the strategy's units, in order
  int shard_rank = 0;                       ///< which shard of every layout this rank owns
  at::ScalarType parameter_dtype =
      at::kFloat;                ///< dtype of the parameters that blocks compute with
  at::Device device = at::kCPU;  ///< where parameters and gradients are
  int64_t expected_numel = 0;    ///< about what this rank will own; 0 when the model does not say
  double state_bytes = 8;        ///< that the optimizer keeps for an element
  /// Masters may be split: parameters are in bf16 and the optimizer knows how (Optimizer). Whole
  /// ones are given settled, and settled again once they were written.
  bool splits_masters = false;
  double small_state_bytes = 8;  ///< state_bytes for one of a small parameter (StateRules)
};

/// A part of what an optimizer keeps.
struct KeptTensor {
  StateFormat format;  ///< name, dtype and block
  at::Tensor value;    ///< 1-D, format.numel() elements of its range
};
/// The elements of a tensor of this format that belong to a range, which begins with a block.
FlatRange blocks_of(const StateFormat& format, const FlatRange& range);
/// One state tensor of a whole matrix: entry `entry` of the unit's layout.
struct MatrixState {
  size_t unit = 0, entry = 0;  ///< the unit, and the matrix's place in its layout
  std::string kind;            ///< "momentum_buffer"
  std::vector<int64_t> shape;  ///< of the state, which a tensor axis does not cut
  at::Tensor value;            ///< fp32, 1-D
};

/// Owned by one ShardingStrategy. Order of calls: adopt() for every unit in order, prepare(), then
/// per step gradient_ready() for every unit, perhaps again after gradients_reopened(), step(), and
/// complete() before each use of a unit's parameters.
class UnitOptimizer {
 public:
  virtual ~UnitOptimizer() = default;
  /// Takes this rank's part of the unit's initial values: full_fp32 is [layout.numel()] on the
  /// device.
  virtual void adopt(size_t unit, const at::Tensor& full_fp32) = 0;
  /// All units are adopted and the stores are complete; they outlive the optimizer.
  virtual void prepare(ParameterStore& parameters, GradientStore& gradients,
                       const OptimizerFactory& factory) = 0;
  /// On the current stream the owned gradient of the unit is that of the whole step.
  virtual void gradient_ready(size_t unit) = 0;
  /// Gradients that were ready are about to change, on the current stream: those that step() uses
  /// are what is there then, whether gradient_ready() says so again or not.
  virtual void gradients_reopened() {}
  /// Starts the update of every unit; the scalars stay valid until the next step().
  virtual void step(const StepScalars& scalars) = 0;
  /// The unit's update is done and published when this returns (for the current stream). The same
  /// order of calls on every rank.
  virtual void complete(size_t unit) = 0;
  /// fp32 values of the owned part of a segment, on any device: whole, or split where the context
  /// allows it, and then the bf16 half is what the parameter store owns.
  virtual MasterValues master(size_t unit, size_t segment) const = 0;
  /// What the optimizer keeps for a part of an owned segment (a range of the unit's flat buffer
  /// with equal treatment, which begins with a block), as Optimizer::state_formats(). Like master()
  /// it may be read and written once the unit is complete, and stays where it is.
  virtual std::vector<KeptTensor> state(size_t unit, size_t segment,
                                        const FlatRange& part) const = 0;
  /// Optimizer::step_count(), once the last step has counted.
  virtual at::Tensor step_count() const = 0;
  /// What this rank keeps for matrices that it owns (tessera/optim/matrix_optimizer.h); like
  /// state().
  virtual std::vector<MatrixState> matrix_states() const { return {}; }
  /// Values were written into what state(), step_count() and matrix_states() gave.
  virtual void restored() {}
  /// Adds what it holds to memory's categories.
  virtual void add_memory(StrategyMemory& memory) const = 0;
  /// Of the latest step whose updates were used, or of the only one, which is then finished first.
  virtual OffloadReport report() { return {}; }
};

/// Makes the optimizer of one strategy.
using UnitOptimizerFactory =
    std::function<std::unique_ptr<UnitOptimizer>(const UnitOptimizerContext&)>;

/// Everything on the device, updated unit by unit on the current stream.
class DeviceOptimizer : public UnitOptimizer {
 public:
  /// All that the context refers to outlives the optimizer.
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
  /// By unit, compact: whole masters in fp32, or the remainders of split ones; undefined when
  /// parameters are fp32.
  std::vector<at::Tensor> masters_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<std::pair<size_t, size_t>> ranges_;  ///< by unit: first, count
  std::vector<FlatRange> places_;                  ///< by range: in its unit's flat buffer
  std::vector<bool> small_;                        ///< by range: see StateRules
};

/// The rank's part of a flat buffer, segment after segment: [shard_numel].
at::Tensor compact_shard(const FlatLayout& layout, const at::Tensor& full, int shard_rank);

}  // namespace tessera
