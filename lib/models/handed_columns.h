#pragma once
// Column sums of the gradient between two blocks: the norm that begins the later block has them at
// hand when it writes the gradient, and the bias that ends the earlier block wants them.
#include <ATen/core/Tensor.h>

namespace tessera::detail {

// For the block whose backward comes next on this thread. columns: as ops::LayerNormGradients has
// them; undefined: nothing is handed on. Keeps columns, but not the gradient.
void hand_columns(const at::Tensor& gradient, const at::Tensor& columns);
// What was handed on with this gradient, if the gradient is still as it was; else undefined. Either
// way nothing is kept.
at::Tensor take_columns(const at::Tensor& gradient);

}  // namespace tessera::detail
