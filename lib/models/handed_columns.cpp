#include "lib/models/handed_columns.h"

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <optional>
#include <utility>

namespace tessera::detail {
namespace {

// Autograd may pass the gradient on as another tensor of the same memory. It is another gradient
// once somebody has written to it, or when the memory was freed in between.
struct Handed {
  c10::weak_intrusive_ptr<c10::StorageImpl> storage;
  const void* begin;
  int64_t numel;
  uint32_t version;
  at::Tensor columns;

  bool belongs_to(const at::Tensor& gradient) const {
    return !storage.expired() &&
           storage._unsafe_get_target() == gradient.storage().unsafeGetStorageImpl() &&
           begin == gradient.const_data_ptr() && numel == gradient.numel() &&
           gradient.is_contiguous() && version == gradient._version();
  }
};

std::optional<Handed>& handed() {
  thread_local std::optional<Handed> last;
  return last;
}

}  // namespace

void hand_columns(const at::Tensor& gradient, const at::Tensor& columns) {
  handed().reset();
  if (!columns.defined() || gradient.numel() == 0 || gradient.is_meta()) return;
  handed() = Handed{gradient.storage().getWeakStorageImpl(), gradient.const_data_ptr(),
                    gradient.numel(), static_cast<uint32_t>(gradient._version()), columns};
}

at::Tensor take_columns(const at::Tensor& gradient) {
  const std::optional<Handed> last = std::exchange(handed(), {});
  return last && last->belongs_to(gradient) ? last->columns : at::Tensor();
}

}  // namespace tessera::detail
