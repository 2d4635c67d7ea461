// SPDX-License-Identifier: MIT
#include "lib/core/gradient_columns.h"

#include <utility>

namespace tessera {

bool GradientColumns::Handed::belongs_to(const at::Tensor& gradient) const {
  return !storage.expired() &&
         storage._unsafe_get_target() == gradient.storage().unsafeGetStorageImpl() &&
         begin == gradient.const_data_ptr() && numel == gradient.numel() &&
         gradient.is_contiguous() && version == gradient._version();
}

void GradientColumns::hand(const at::Tensor& gradient, const at::Tensor& columns) {
  handed_.reset();
  if (!columns.defined() || gradient.numel() == 0 || gradient.is_meta()) return;
  handed_ = Handed{gradient.storage().getWeakStorageImpl(), gradient.const_data_ptr(),
                   gradient.numel(), static_cast<uint32_t>(gradient._version()), columns};
}

at::Tensor GradientColumns::take(const at::Tensor& gradient) {
  const std::optional<Handed> last = std::exchange(handed_, {});
  return last && last->belongs_to(gradient) ? last->columns : at::Tensor();
}

}  // namespace tessera
