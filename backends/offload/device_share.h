// SPDX-License-Identifier: MIT
#pragma once
// Unit optimizer that keeps some units' state on the device and offloads the rest.
#include <memory>
#include <vector>

#include "backends/common/composite_unit_optimizer.h"
#include "backends/offload/device_state_budget.h"

namespace tessera {

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
