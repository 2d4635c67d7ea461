// SPDX-License-Identifier: MIT
#include "lib/program/grouped_product.h"

#include <ATen/ATen.h>

#include "lib/ops/grouped_product.h"
#include "lib/program/argument_checks.h"
#include "tessera/core/error.h"

namespace tessera::program {

at::Tensor grouped_product(const at::Tensor& x, const at::Tensor& weight,
                           const at::Tensor& offsets) {
  check(x.dim() == 2 && weight.dim() == 3 && offsets.dim() == 1 &&
            offsets.size(0) == weight.size(0) && x.size(1) == weight.size(1),
        ErrorCode::kInvalidArgument, "the product of experts has rows ", x.sizes(), ", weights ",
        weight.sizes(), " and offsets ", offsets.sizes());
  if (x.is_meta()) return ops::grouped_product(x, weight, offsets);
  if (x.is_cuda() && x.scalar_type() == at::kBFloat16) {
    const at::Tensor ends = offsets.to(at::kInt);
    check_ends(ends, x.size(0));
    const at::Tensor rows = at::arange(x.size(0), ends.options());
    const at::Tensor behind = rows.ge(ends.select(0, ends.size(0) - 1)).unsqueeze(1);
    return ops::grouped_product(x, weight, ends).masked_fill(behind, 0);
  }
  return ops::grouped_product(x, weight, offsets);
}

}  // namespace tessera::program
