// SPDX-License-Identifier: MIT
#pragma once
// Products of groups of rows with a matrix each, as of the experts of a mixture. On a GPU in bf16
// the ends of the groups stay on the device; in other dtypes, and where a dimension is no multiple
// of 8 (16 bytes), the host waits for them.
#include <ATen/core/Tensor.h>

namespace tessera::ops {

// Rows [ends[e - 1], ends[e]) of x [rows, in] times weight[e] of [groups, in, out] -> [rows, out];
// ends int32 [groups], not decreasing and at most `rows`. Rows behind the last end are undefined on
// a GPU in bf16, else 0. weight may be a transposed view. Throws Error(kInvalidArgument) for ends
// that the host sees and that decrease or lie outside. Autograd differentiates it.
at::Tensor grouped_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends);

// weight_gradient[e] of [groups, out, in] += gradient^T x over the rows of group e; where it was
// lazily zero (tessera/core/lazy_zero.h), =. gradient [rows, out], x [rows, in].
void grouped_weight_gradient(const at::Tensor& gradient, const at::Tensor& x,
                             const at::Tensor& ends, const at::Tensor& weight_gradient);

// result[e] of [groups, m, n] = left [m, rows] times right [rows, n] over the rows of group e.
// False where no kernel writes into `result`; nothing is done then.
bool grouped_product_into(const at::Tensor& left, const at::Tensor& right, const at::Tensor& ends,
                          const at::Tensor& result);

}  // namespace tessera::ops
