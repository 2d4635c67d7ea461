// SPDX-License-Identifier: MIT
#pragma once
// Unit optimizer that keeps some units' state on the device and offloads the rest.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "backends/common/composite_unit_optimizer.h"
#include "tessera/sharding/flat_layout.h"

namespace tessera {

// Device memory for masters and moments of some units, which they take in the order of forward, so
// that what forward needs first is ready first.
class DeviceStateBudget {
 public:
  explicit DeviceStateBudget(int64_t bytes) : left_(static_cast<double>(bytes)) {}

  double left() const { return left_; }
  // Takes the unit's state from the budget if it fits. Uses the size on the largest rank, so that
  // all ranks decide equally, as they update and publish units in one order. element,
  // small_element: bytes kept per element, and per element of a small parameter (StateRules).
  bool take(const FlatLayout& layout, double element, double small_element) {
    double bytes = 0;
    for (int rank = 0; rank < (element == small_element ? 1 : layout.shards()); ++rank) {
      double own = 0;
      for (size_t segment = 0; segment < layout.segments().size(); ++segment) {
        for (const OwnedRun& run : layout.owned_runs(segment, rank)) {
          own += static_cast<double>(run.range.numel) * (run.small ? small_element : element);
        }
      }
      bytes = std::max(bytes, own);
    }
    if (bytes > left_) return false;
    left_ -= bytes;
    return true;
  }

 private:
  double left_;
};

// Both parts update concurrently, the device's units on the compute stream. Masters are fp32 in
// both.
class DeviceShare final : public CompositeUnitOptimizer {
 public:
  // room: shared by all unit optimizers of a rank.
  DeviceShare(const UnitOptimizerContext& context, const UnitOptimizerFactory& offloaded,
              std::shared_ptr<DeviceStateBudget> room);

  void adopt(size_t unit, const at::Tensor& full_fp32) override;
  void prepare(ParameterStore& parameters, GradientStore& gradients,
               const OptimizerFactory& factory) override;
  void gradient_ready(size_t unit) override { of(unit).gradient_ready(unit); }
  void gradients_reopened() override { offloaded_->gradients_reopened(); }
  void step(const StepScalars& scalars) override;
  at::Tensor step_count() const override { return on_device_->step_count(); }
  void restored() override;
  void add_memory(StrategyMemory& memory) const override;
  OffloadReport report() override { return offloaded_->report(); }

 private:
  UnitOptimizer& of(size_t unit) const override { return stays_[unit] ? *on_device_ : *offloaded_; }

  const UnitOptimizerContext context_;
  const double master_;  // bytes of an element's master
  const std::shared_ptr<DeviceStateBudget> room_;
  std::vector<bool> stays_;  // by unit
  std::vector<ParameterUnit> units_on_device_, units_offloaded_;
  std::unique_ptr<UnitOptimizer> on_device_, offloaded_;
};

}  // namespace tessera
