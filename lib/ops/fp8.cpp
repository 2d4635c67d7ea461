// SPDX-License-Identifier: MIT
#include "lib/ops/fp8.h"

#include <ATen/ATen.h>

#include "lib/ops/fp8_codes.h"
#include "tessera/core/error.h"

namespace tessera::ops {
Fp8Matrix fp8_matrix(const at::Tensor& x, at::ScalarType dtype, Fp8 scaling) {
  check(x.dim() == 2 && scaling != Fp8::kOff, ErrorCode::kInternal,
        "fp8_matrix: a matrix and scales are expected, not shape ", x.sizes());
  return fp8_cast(x, fp8_largest(x, scaling), dtype);
}

bool fp8_cast_fits(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  const bool known = type == at::kBFloat16 || type == at::kHalf || type == at::kFloat;
  if (!known || x.numel() == 0) return false;
  if (x.is_contiguous()) return x.size(1) % 8 == 0;
  return x.t().is_contiguous() && x.size(0) % 8 == 0 && x.size(1) % 16 == 0;
}

bool fp8_layouts_fit(const at::Tensor& x) {
  const at::ScalarType type = x.scalar_type();
  const bool known = type == at::kBFloat16 || type == at::kHalf || type == at::kFloat;
  return known && x.numel() > 0 && x.is_contiguous() && x.size(1) % 8 == 0;
}

bool fp8_product_fits(const Fp8Matrix& left, const Fp8Matrix& right, at::ScalarType dtype) {
  const bool both_tensorwise = left.scale.numel() == 1 && right.scale.numel() == 1;
  const bool both_rowwise =
      left.scale.size(0) == left.codes.size(0) && right.scale.size(0) == right.codes.size(0);
  return left.codes.numel() > 0 && right.codes.size(0) > 0 && right.codes.size(0) % 16 == 0 &&
         (both_tensorwise || both_rowwise) &&
         (dtype == at::kBFloat16 || dtype == at::kHalf || dtype == at::kFloat);
}

bool fp8_turned_fits(const Fp8Matrix& x) {
  return x.codes.numel() > 0 && x.codes.is_contiguous() && x.codes.size(1) % 8 == 0;
}

const Fp8Matrix* Fp8Weights::stored(const void* key) const {
  if (stored_ == nullptr) return nullptr;
  const auto found = stored_->find(key);
  return found == stored_->end() ? nullptr : &found->second;
}

const Fp8Matrix& Fp8Weights::copy_of(const void* key, bool transposed,
                                     const std::function<Fp8Matrix()>& make) {
  Fp8Matrix& copy = copies_[{key, transposed}];
  if (!copy.defined()) copy = make();
  return copy;
}

}  // namespace tessera::ops
