// SPDX-License-Identifier: MIT
// Products of 8-bit matrices by cuBLAS.
#include "lib/ops/fp8.h"

#include <ATen/ATen.h>
#include <ATen/cuda/CUDAContext.h>

#include "lib/ops/cuda/entries.h"

namespace tessera::ops::cuda {
namespace {

// cuBLAS multiplies 8-bit matrices from compute capability 8.9 on.
bool has_products() {
  const cudaDeviceProp* const device = at::cuda::getCurrentDeviceProperties();
  return device->major * 10 + device->minor >= 89;
}

// The inner dimension filled with zeros to a multiple of 16.
at::Tensor filled(const at::Tensor& codes) {
  const int64_t missing = (16 - codes.size(1) % 16) % 16;
  if (missing == 0) return codes;
  return at::constant_pad_nd(codes.view(at::kByte), {0, missing}).view(codes.scalar_type());
}

}  // namespace

at::Tensor fp8_product(const Fp8Matrix& left, const Fp8Matrix& right, at::ScalarType dtype) {
  if (!has_products() || !fp8_product_fits(left, right, dtype)) {
    return reference::fp8_product(left, right, dtype);
  }
  // With a scale a row the result is in bfloat16.
  const at::ScalarType written = left.scale.numel() == 1 ? dtype : at::kBFloat16;
  return at::_scaled_mm(filled(left.codes), filled(right.codes).t(), left.scale, right.scale.t(),
                        /*bias=*/{}, /*scale_result=*/{}, written, /*use_fast_accum=*/false)
      .to(dtype);
}

}  // namespace tessera::ops::cuda
