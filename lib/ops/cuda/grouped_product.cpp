// SPDX-License-Identifier: MIT
#include "lib/ops/grouped_product.h"

#include <ATen/native/cuda/GroupMM.h>

#include "lib/ops/cuda/entries.h"
#include "lib/ops/cuda/support.h"

namespace tessera::ops::cuda {
namespace {

// Where at::_grouped_mm() takes its kernels, too.
bool has_kernels() {
  const cudaDeviceProp* const device = at::cuda::getCurrentDeviceProperties();
  return (device->major == 9 || device->major == 10) && device->minor == 0;
}

}  // namespace

bool grouped_product_into(const at::Tensor& left, const at::Tensor& right, const at::Tensor& ends,
                          const at::Tensor& result) {
  constexpr int64_t kMultiple = 8;  // strides of 16 bytes
  const bool same = left.scalar_type() == at::kBFloat16 && right.scalar_type() == at::kBFloat16;
  if (!same || !fits(at::kBFloat16, {result}) || left.size(0) % kMultiple != 0 ||
      right.size(1) % kMultiple != 0 || !has_kernels()) {
    return false;
  }
  at::Tensor to = result;
  at::cuda::detail::bf16bf16_grouped_mm(left, right, ends, std::nullopt, to);
  return true;
}

}  // namespace tessera::ops::cuda
