// SPDX-License-Identifier: MIT
#include "lib/program/grouped_product.h"

#include <ATen/ATen.h>

#include <vector>

#include "lib/program/argument_checks.h"
#include "tessera/core/error.h"

namespace tessera::program {

at::Tensor grouped_product(const at::Tensor& x, const at::Tensor& weight,
                           const at::Tensor& offsets) {
  check(x.dim() == 2 && weight.dim() == 3 && offsets.dim() == 1 &&
            offsets.size(0) == weight.size(0) && x.size(1) == weight.size(1),
        ErrorCode::kInvalidArgument, "the product of experts has rows ", x.sizes(), ", weights ",
        weight.sizes(), " and offsets ", offsets.sizes());
  if (x.is_meta()) return x.mm(weight.select(0, 0));
  if (x.is_cuda() && x.scalar_type() == at::kBFloat16) {
    const at::Tensor ends = offsets.to(at::kInt);
    check_ends(ends, x.size(0));
    const at::Tensor rows = at::arange(x.size(0), ends.options());
    const at::Tensor behind = rows.ge(ends.select(0, ends.size(0) - 1)).unsqueeze(1);
    return at::_grouped_mm(x, weight, ends).masked_fill(behind, 0);
  }
  const at::Tensor ends = offsets.to(at::kCPU, at::kLong).contiguous();
  std::vector<at::Tensor> parts;
  int64_t first = 0;
  for (int64_t expert = 0; expert < ends.numel(); ++expert) {
    const int64_t end = static_cast<const int64_t*>(ends.const_data_ptr())[expert];
    check(first <= end && end <= x.size(0), ErrorCode::kInvalidArgument, "the rows of expert ",
          expert, " end at ", end, " of ", x.size(0));
    if (first < end) parts.push_back(x.narrow(0, first, end - first).mm(weight.select(0, expert)));
    first = end;
  }
  if (first < x.size(0) || parts.empty()) {
    parts.push_back(at::zeros({x.size(0) - first, weight.size(2)}, x.options()));
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

}  // namespace tessera::program
