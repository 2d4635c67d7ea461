// SPDX-License-Identifier: MIT
#include "lib/ops/grouped_product.h"

#include <ATen/ATen.h>

#include <vector>

#include "lib/core/meta.h"
#include "lib/ops/reference.h"
#include "tessera/core/error.h"
#include "tessera/core/lazy_zero.h"

namespace tessera::ops {
namespace {

// LibTorch's kernels take strides of 16 bytes.
bool has_kernels(const at::Tensor& x, int64_t in, int64_t out) {
  constexpr int64_t kMultiple = 8;
  return runs_on_gpu(x) && x.scalar_type() == at::kBFloat16 && in % kMultiple == 0 &&
         out % kMultiple == 0;
}

// Calls function(group, first row, rows) of every group, and returns the last end.
template <typename Function>
int64_t for_each_group(const at::Tensor& ends, int64_t rows, const Function& function) {
  const at::Tensor on_host = ends.to(at::kCPU, at::kLong).contiguous();
  const auto* const end_of = on_host.const_data_ptr<int64_t>();
  int64_t first = 0;
  for (int64_t group = 0; group < on_host.numel(); ++group) {
    const int64_t end = end_of[group];
    check(first <= end && end <= rows, ErrorCode::kInvalidArgument, "the rows of expert ", group,
          " end at ", end, " of ", rows);
    function(group, first, end - first);
    first = end;
  }
  return first;
}

}  // namespace

at::Tensor grouped_product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& ends) {
  if (x.is_meta()) {
    const at::Tensor product = x.mm(weight.select(0, 0));  // the work of all groups together
    return runs_on_gpu(x) ? product : at::empty_like(product);
  }
  if (has_kernels(x, weight.size(1), weight.size(2))) return at::_grouped_mm(x, weight, ends);
  std::vector<at::Tensor> parts;  // autograd differentiates them
  const int64_t last = for_each_group(ends, x.size(0), [&](int64_t e, int64_t first, int64_t n) {
    if (n > 0) parts.push_back(x.narrow(0, first, n).mm(weight.select(0, e)));
  });
  if (last < x.size(0) || parts.empty()) {
    parts.push_back(at::zeros({x.size(0) - last, weight.size(2)}, x.options()));
  }
  return parts.size() == 1 ? parts.front() : at::cat(parts);
}

void grouped_weight_gradient(const at::Tensor& gradient, const at::Tensor& x,
                             const at::Tensor& ends, const at::Tensor& weight_gradient) {
  const bool replaces = consume_lazy_zero(weight_gradient);
  const at::Tensor turned = gradient.t();
  if (replaces && grouped_product_into(turned, x, ends, weight_gradient)) return;
  if (x.is_meta()) {
    at::Tensor part = at::empty(
        has_kernels(x, x.size(1), gradient.size(1)) ? weight_gradient.sizes() : at::IntArrayRef{0},
        x.options());
    at::Tensor to = weight_gradient.select(0, 0).to(x.scalar_type());
    at::addmm_out(to, to, turned, x);
    return;
  }
  if (has_kernels(x, x.size(1), gradient.size(1))) {
    const at::Tensor part = at::_grouped_mm(turned, x, ends);
    replaces ? weight_gradient.copy_(part) : weight_gradient.add_(part);
    return;
  }
  for_each_group(ends, x.size(0), [&](int64_t e, int64_t first, int64_t n) {
    const at::Tensor of_group = weight_gradient.select(0, e);
    if (n == 0) {
      if (replaces) of_group.zero_();
      return;
    }
    const at::Tensor dy = turned.narrow(1, first, n), rows = x.narrow(0, first, n);
    if (of_group.scalar_type() != x.scalar_type()) {
      const at::Tensor part = dy.mm(rows);
      replaces ? of_group.copy_(part) : of_group.add_(part);
    } else {
      at::Tensor to = of_group;
      at::addmm_out(to, to, dy, rows, /*beta=*/replaces ? 0 : 1, /*alpha=*/1);
    }
  });
}

bool reference::grouped_product_into(const at::Tensor&, const at::Tensor&, const at::Tensor&,
                                     const at::Tensor&) {
  return false;
}

}  // namespace tessera::ops
