// SPDX-License-Identifier: MIT
#pragma once
#include <ATen/core/Tensor.h>

namespace tessera {

inline int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.nbytes()) : 0;
}

}  // namespace tessera
