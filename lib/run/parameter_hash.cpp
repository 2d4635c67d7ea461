// SPDX-License-Identifier: MIT
#include "lib/run/parameter_hash.h"

#include <ATen/ATen.h>

#include <algorithm>

namespace tessera::programs {

void ParameterHash::update(const at::Tensor& value) {
  constexpr int64_t kPiece = int64_t{8} << 20;  // elements
  const at::Tensor flat = value.detach().reshape(-1);
  for (int64_t begin = 0; begin < flat.numel(); begin += kPiece) {
    const int64_t count = std::min(kPiece, flat.numel() - begin);
    // Converted on its device: copies between devices would convert on the host.
    at::Tensor piece = flat.narrow(0, begin, count).to(at::kFloat).contiguous();
    if (!piece.is_cpu()) {
      if (!buffer_.defined()) {
        buffer_ = at::empty({kPiece}, at::TensorOptions(at::kFloat).pinned_memory(true));
      }
      const at::Tensor host = buffer_.narrow(0, 0, count);
      piece = host.copy_(piece);
    }
    hash_.update(piece.const_data_ptr(), piece.nbytes());
  }
}

}  // namespace tessera::programs
