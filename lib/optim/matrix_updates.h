// SPDX-License-Identifier: MIT
#pragma once
// What strategies do with an optimizer of whole matrices (tessera/optim/matrix_optimizer.h).
#include <cstdint>

#include "tessera/model/model_spec.h"
#include "tessera/optim/matrix_optimizer.h"

namespace tessera {

// The model with UpdateRule::whole_matrix set for what the optimizer takes whole; as it is where
// that treats every element alone, and where it was marked before. Throws Error(kInvalidArgument)
// where nothing that is trained is chosen, and for a chosen one whose group sets betas.
ModelSpec with_marked_matrices(ModelSpec model, const OptimizerFactory& optimizer);

// Of parameters whose "gradient" is the update that a MatrixOptimizer gave: fp32
//   parameter * (1 - rate * decay) - rate * lr_factor(shape) * update
// with the rate of the step, the group and the optimizer,
// element by element, each operation rounded by itself, so that no cut changes a bit. Keeps no
// state; StepScalars::gradient_scale does not count, and what skips a step has updates of zeros.
OptimizerFactory apply_updates(std::shared_ptr<const MatrixOptimizer> optimizer);

// Elements that the optimizer keeps for a matrix.
int64_t state_numel(const MatrixOptimizer& optimizer, c10::IntArrayRef shape);

// Throws Error(kInvalidArgument) for what update() must not return or leave.
void check_update(const MatrixOptimizer& optimizer, c10::IntArrayRef shape,
                  const at::Tensor& update, const NamedTensors& state);

}  // namespace tessera
