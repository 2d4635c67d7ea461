// SPDX-License-Identifier: MIT
#include "lib/ops/fp8.h"

#include <ATen/ATen.h>

#include <limits>

#include "tessera/core/error.h"

namespace tessera::ops {
namespace {

double largest_code(at::ScalarType dtype) { return dtype == at::kFloat8_e5m2 ? 57344.0 : 448.0; }

// fp32 [1, 1], or [rows, 1].
at::Tensor largest_magnitude(const at::Tensor& x, Fp8 scaling) {
  const bool rowwise = scaling == Fp8::kRowwise;
  if (x.numel() == 0) {
    return at::zeros({rowwise ? x.size(0) : 1, 1}, x.options().dtype(at::kFloat));
  }
  const at::Tensor in_order = x.is_contiguous() ? x : x.t();  // as its memory lies, mostly
  const auto [least, most] = rowwise ? at::aminmax(x, 1, /*keepdim=*/true)
                                     : at::aminmax(in_order.reshape({1, -1}), 1, true);
  return at::maximum(most, least.neg()).to(at::kFloat);
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
  // In fp32; casts to 8 bits round what lies barely past the largest code to it.
  const at::Tensor scaled = (x.scalar_type() == at::kDouble ? x.to(at::kFloat) : x) / scale;
  return {scaled.to(dtype).contiguous(), scale};
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
