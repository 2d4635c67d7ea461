// SPDX-License-Identifier: MIT
#pragma once
// Unit optimizer that updates offloaded units on the host's cores and through the device at once.
#include <array>
#include <memory>
#include <vector>

#include "backends/common/composite_unit_optimizer.h"
#include "backends/offload/host_share.h"
#include "tessera/backends/parallel_config.h"

namespace tessera {

// Divides units between two sides, as they come: each goes to the side that would finish it first.
class UnitDivision {
 public:
  // costs: seconds per element of either side.
  explicit UnitDivision(const std::array<double, 2>& costs) : costs_(costs) {}

  // The side of the next unit.
  size_t next_side(int64_t numel) {
    const auto end = [&](size_t side) {
      return busy_s_[side] + static_cast<double>(numel) * costs_[side];
    };
    const size_t side = end(1) < end(0) ? 1 : 0;
    busy_s_[side] = end(side);
    return side;
  }

 private:
  std::array<double, 2> costs_, busy_s_{};
};

// [Note: both steps at once]
// The host's AdamW is limited by the loads of its cores, a streamed step by the link. Each side has
// its own units, whose state is in host memory for both. Both update in the order of forward. They
// meet on the host's memory bus. Per parameter in 16 bits with moments of m bytes, the host's step
// moves 16 + 2 m bytes there, copies included, and a streamed one 8 + 2 m. So each side's time is
// measured beside the other (measure_step_costs()). A unit goes to the side that would finish it
// first (UnitDivision). Both give AdamW's and Adam's bits, so numbers do not show the division.
class BothSteps final : public CompositeUnitOptimizer {
 public:
  // costs: seconds per element of the host's and of the streamed step, beside each other; equal on
  // all ranks.
  BothSteps(const UnitOptimizerContext& context, const ParallelConfig& config, Communicator& world,
            const HostShare& share, const std::array<double, 2>& costs);

  void adopt(size_t unit, const at::Tensor& full_fp32) override;
  void prepare(ParameterStore& parameters, GradientStore& gradients,
               const OptimizerFactory& factory) override;
  void gradient_ready(size_t unit) override { of(unit).gradient_ready(unit); }
  void gradients_reopened() override { sides_[0]->gradients_reopened(); }
  void step(const StepScalars& scalars) override;
  at::Tensor step_count() const override { return sides_[0]->step_count(); }
  void restored() override;
  void add_memory(StrategyMemory& memory) const override;
  OffloadReport report() override;

 private:
  UnitOptimizer& of(size_t unit) const override { return *sides_[side_of_[unit]]; }

  // Index 0: the host's step; 1: the streamed one.
  const UnitOptimizerContext context_;
  UnitDivision division_;
  std::vector<size_t> side_of_;  // by unit
  std::array<std::vector<ParameterUnit>, 2> units_;
  std::array<std::unique_ptr<UnitOptimizer>, 2> sides_;
};

}  // namespace tessera
