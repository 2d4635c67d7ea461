// SPDX-License-Identifier: MIT
#include "lib/ops/fp8.h"

#include <ATen/ATen.h>

#include <limits>

#include "tessera/core/error.h"

namespace tessera::ops {
namespace {

double largest_code(at::ScalarType dtype) { return dtype == at::kFloat8_e5m2 ? 57344.0 : 448.0; }

at::Tensor largest_magnitude(const at::Tensor& x, Fp8 scaling) {
  const at::Tensor sizes = x.abs();
  if (x.numel() == 0) {
    const int64_t rows = scaling == Fp8::kRowwise ? x.size(0) : 1;
    return at::zeros({rows, 1}, x.options().dtype(at::kFloat));
  }
  return (scaling == Fp8::kRowwise ? sizes.amax(1, /*keepdim=*/true) : sizes.amax().view({1, 1}))
      .to(at::kFloat);
}

}  // namespace

Fp8Matrix fp8_matrix(const at::Tensor& x, at::ScalarType dtype, Fp8 scaling,
                     const SharedLargest& over_ranks) {
  check(x.dim() == 2 && scaling != Fp8::kOff, ErrorCode::kInternal,
        "fp8_matrix: a matrix and scales are expected, not shape ", x.sizes());
  const at::Tensor largest = largest_magnitude(x, scaling);
  if (over_ranks) over_ranks(largest);
  // A scale below the smallest normal number would be inexact, or 0.
  const at::Tensor scale =
      at::where(largest.eq(0), 1.0,
                (largest / largest_code(dtype)).clamp_min(std::numeric_limits<float>::min()))
          .to(at::kFloat);
  // The clamp keeps NaN, and what rounding puts past the largest code.
  const double most = largest_code(dtype);
  at::Tensor scaled = x.to(at::kFloat) / scale;
  scaled.clamp_(-most, most);
  return {scaled.contiguous().to(dtype), scale};
}

Fp8Matrix fp8_transposed(const Fp8Matrix& x) {
  check(x.scale.numel() == 1, ErrorCode::kInternal, "fp8_transposed: ", x.scale.numel(),
        " scales; rows of the transpose need scales of their own");
  const at::ScalarType dtype = x.codes.scalar_type();
  return {x.codes.view(at::kByte).t().contiguous().view(dtype), x.scale};
}

bool fp8_product_fits(const Fp8Matrix& left, const Fp8Matrix& right, at::ScalarType dtype) {
  const bool both_tensorwise = left.scale.numel() == 1 && right.scale.numel() == 1;
  const bool both_rowwise =
      left.scale.size(0) == left.codes.size(0) && right.scale.size(0) == right.codes.size(0);
  return left.codes.numel() > 0 && right.codes.size(0) > 0 && right.codes.size(0) % 16 == 0 &&
         (both_tensorwise || both_rowwise) &&
         (dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kFloat);
}

const Fp8Matrix& Fp8Weights::copy_of(const void* key, bool transposed,
                                     const std::function<Fp8Matrix()>& make) {
  Fp8Matrix& copy = copies_[{key, transposed}];
  if (!copy.defined()) copy = make();
  return copy;
}

}  // namespace tessera::ops
