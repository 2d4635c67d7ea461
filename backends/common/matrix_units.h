// SPDX-License-Identifier: MIT
#pragma once
// Step of a model with a matrix optimizer for some units and an element-wise one for the rest.
#include <memory>
#include <vector>

#include "backends/common/composite_unit_optimizer.h"
#include "backends/common/matrix_exchange.h"
#include "tessera/backends/parallel_config.h"

namespace tessera {

// Updates of matrices, in place of gradients for the matrices' element-wise optimizer.
class MatrixUpdates final : public GradientStore {
 public:
  explicit MatrixUpdates(const MatrixExchange& exchange) : exchange_(exchange) {}
  // No backward writes them: the exchange does, in the optimizer step.
  void begin_step() override {}
  void before_backward(size_t) override {}
  void after_backward(size_t, bool) override {}
  void finish() override {}
  void drop_step() override {}
  at::Tensor owned(size_t unit, size_t segment) const override {
    return exchange_.update(unit, segment);
  }
  int64_t persistent_bytes() const override { return 0; }
  int64_t buffer_bytes() const override { return exchange_.buffer_bytes(); }

 private:
  const MatrixExchange& exchange_;
};

// Two unit optimizers of the same kind. The matrices' one keeps masters without moments and takes
// the exchange's updates as gradients.
class MatrixUnits final : public CompositeUnitOptimizer {
 public:
  struct Parts {
    UnitOptimizerContext context;
    const ProcessGroups& ranks;
    const ParallelConfig& config;
    UnitOptimizerFactory placement;
    WholeMatrices optimizer;
  };
  explicit MatrixUnits(Parts parts);

  void adopt(size_t unit, const at::Tensor& full_fp32) override;
  void prepare(ParameterStore& parameters, GradientStore& gradients,
               const OptimizerFactory& factory) override;
  void gradient_ready(size_t unit) override;
  void gradients_reopened() override { elements_->gradients_reopened(); }
  void step(const StepScalars& scalars) override;
  std::vector<MatrixState> matrix_states() const override;
  at::Tensor step_count() const override { return elements_->step_count(); }
  void restored() override;
  void add_memory(StrategyMemory& memory) const override;
  OffloadReport report() override;

 private:
  UnitOptimizer& of(size_t unit) const override {
    return parts_.context.units[unit].matrices ? *matrices_ : *elements_;
  }

  const Parts parts_;
  std::vector<ParameterUnit> units_of_elements_, units_of_matrices_;
  std::unique_ptr<UnitOptimizer> elements_, matrices_;
  GradientStore* gradients_ = nullptr;
  std::unique_ptr<MatrixExchange> exchange_;
  std::unique_ptr<MatrixUpdates> updates_;
};

}  // namespace tessera
