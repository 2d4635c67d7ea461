// SPDX-License-Identifier: MIT
#pragma once
// Strategies' side of matrix optimizers (tessera/optim/matrix_optimizer.h).
#include <cstdint>

#include "tessera/model/model_spec.h"
#include "tessera/optim/matrix_optimizer.h"

namespace tessera {

// The model with UpdateRule::whole_matrix set for the optimizer's matrices; unchanged for an
// element-wise optimizer, and if already marked. Throws Error(kInvalidArgument) if no trained
// parameter is selected, or if a selected one's group sets betas.
ModelSpec with_marked_matrices(ModelSpec model, const OptimizerFactory& optimizer);

// Makes the optimizer that applies a MatrixOptimizer's updates, given as "gradients": fp32
//   parameter * (1 - rate * decay) - rate * lr_factor(shape) * update
// with the rate of the step, the group and the optimizer. Element-wise, with each operation rounded
// separately, so sharding changes no bit. Stateless; ignores StepScalars::gradient_scale. A skipped
// step has zero updates.
OptimizerFactory apply_updates(std::shared_ptr<const MatrixOptimizer> optimizer);

// Elements of the optimizer's state for a matrix.
int64_t state_numel(const MatrixOptimizer& optimizer, c10::IntArrayRef shape);

// Throws Error(kInvalidArgument) for an invalid result or state of update().
void check_update(const MatrixOptimizer& optimizer, c10::IntArrayRef shape,
                  const at::Tensor& update, const NamedTensors& state);

}  // namespace tessera
