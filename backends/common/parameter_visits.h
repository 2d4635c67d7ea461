// SPDX-License-Identifier: MIT
#pragma once
// Access to parameters, gradients and buffers by name.
#include <ATen/core/Tensor.h>

#include "backends/common/attached_model.h"
#include "backends/common/gradient_scale.h"
#include "backends/common/process_groups.h"
#include "tessera/backends/strategy.h"
#include "tessera/backends/unit_optimizer.h"
#include "tessera/sharding/gradient_store.h"
#include "tessera/sharding/parameter_store.h"

namespace tessera {

// Visits of one ShardingStrategy's tensors, between its steps. Each is collective and visits in an
// order that all ranks share.
class ParameterVisits {
 public:
  // Inputs; all outlive the object.
  struct Parts {
    const AttachedModel& model;
    const ProcessGroups& ranks;
    const ParameterStore& parameters;
    const GradientStore& gradients;
    UnitOptimizer& optimizer;
    GradientScale& scale;
  };
  explicit ParameterVisits(const Parts& parts) : parts_(parts) {}

  ///@{
  // Full in the data axis, a slice in others; values are fp32 copies.
  void parameters(const ParameterVisitor& visitor) const;
  void gradients(const ParameterVisitor& visitor) const;
  ///@}
  void buffers(const ParameterVisitor& visitor) const;
  // Owned gradients, which the visitor may change: see Strategy::for_each_gradient().
  void owned_gradients(const GradientVisitor& visitor) const;
  // Squared norm of each trained parameter's gradient, over all axes but the pipeline.
  NamedTensors squared_norms() const;

 private:
  void visit(bool gradients, const ParameterVisitor& visitor) const;

  const Parts parts_;
};

// Completes the pending update of every unit.
void complete_all(UnitOptimizer& optimizer, size_t units);

}  // namespace tessera
