// SPDX-License-Identifier: MIT
#pragma once
// A placement that keeps the state of some units on the device and offloads that of the others.
#include <memory>
#include <vector>

#include "backends/offload/state_room.h"
#include "tessera/backends/unit_optimizer.h"

namespace tessera {

// Two placements behind one: each is shown the other's units as frozen ones. Both update at once,
// the device's units on the compute stream.
class DeviceShare final : public UnitOptimizer {
 public:
  // room: shared by all placements of a rank.
  DeviceShare(const UnitOptimizerContext& context, const UnitOptimizerFactory& offloaded,
              std::shared_ptr<StateRoom> room);

  void adopt(size_t unit, const at::Tensor& full_fp32) override;
  void prepare(ParameterStore& parameters, GradientStore& gradients,
               const OptimizerFactory& factory) override;
  void gradient_ready(size_t unit) override { of(unit).gradient_ready(unit); }
  void gradients_reopened() override { offloaded_->gradients_reopened(); }
  void step(const StepScalars& scalars) override;
  void complete(size_t unit) override { of(unit).complete(unit); }
  MasterValues master(size_t unit, size_t segment) const override {
    return of(unit).master(unit, segment);
  }
  std::vector<KeptTensor> state(size_t unit, size_t segment, const FlatRange& part) const override {
    return of(unit).state(unit, segment, part);
  }
  at::Tensor step_count() const override { return on_device_->step_count(); }
  void restored() override;
  void add_memory(StrategyMemory& memory) const override;
  OffloadReport report() override { return offloaded_->report(); }

 private:
  UnitOptimizer& of(size_t unit) const { return stays_[unit] ? *on_device_ : *offloaded_; }

  const UnitOptimizerContext context_;
  const double element_;  // bytes
  const std::shared_ptr<StateRoom> room_;
  std::vector<bool> stays_;  // by unit
  std::vector<ParameterUnit> units_on_device_, units_offloaded_;
  std::unique_ptr<UnitOptimizer> on_device_, offloaded_;
};

}  // namespace tessera
