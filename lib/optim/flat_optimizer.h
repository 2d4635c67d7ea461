// SPDX-License-Identifier: MIT
#pragma once
// Base of optimizers that update a range by a few ATen operations.
#include <string>
#include <vector>

#include "tessera/optim/optimizer.h"

namespace tessera {

class FlatOptimizer : public Optimizer {
 public:
  FlatOptimizer(std::vector<std::string> state_names, std::vector<OptimizerRange> ranges);

  size_t range_count() const override { return ranges_.size(); }
  void begin_step(const StepScalars& scalars) override;
  void update(size_t first, size_t count) override;
  void update(std::span<const ExternalRange> ranges) const override;
  std::vector<std::string> state_names() const override { return state_names_; }
  NamedTensors state(size_t range) const override;
  at::Tensor step_count() const override { return step_count_; }
  int64_t state_bytes() const override;

 protected:
  struct Update {
    const OptimizerRange& range;
    at::Tensor gradient;       // fp32, scaled
    at::Tensor learning_rate;  // the range's own

    // Adds the range's weight decay as torch's L2 penalty; weight_decay: the optimizer's.
    at::Tensor decayed_gradient(double weight_decay) const;
  };
  // Returns the new parameter and replaces state, in the order of state_names(). Changes nothing in
  // place.
  virtual at::Tensor updated(const Update& update, std::vector<at::Tensor>& state) const = 0;

 private:
  void update_range(const OptimizerRange& range, const std::vector<at::Tensor>& state) const;

  const std::vector<std::string> state_names_;
  const std::vector<OptimizerRange> ranges_;
  std::vector<std::vector<at::Tensor>> states_;  // by range
  at::Tensor step_count_;
  StepScalars scalars_;
};

}  // namespace tessera
