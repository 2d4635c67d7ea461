// SPDX-License-Identifier: MIT
#include "lib/core/late_rows.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <map>
#include <mutex>

namespace tessera {
namespace {

struct Open {
  std::mutex mutex;
  std::map<const void*, LateRows*> by_address;
};

Open& all_open() {
  static Open open;
  return open;
}

struct Promises {
  std::mutex mutex;
  std::map<const at::TensorImpl*, c10::weak_intrusive_ptr<at::TensorImpl>> parameters;
};

Promises& all_promises() {
  static Promises promises;
  return promises;
}

}  // namespace

void LateRows::open(const at::Tensor& gradient) {
  close();
  Open& open = all_open();
  const std::lock_guard lock(open.mutex);
  address_ = gradient.const_data_ptr();
  open.by_address[address_] = this;
}

void LateRows::close() {
  if (address_ == nullptr) return;
  Open& open = all_open();
  const std::lock_guard lock(open.mutex);
  open.by_address.erase(address_);
  address_ = nullptr;
}

void promise_rows(const at::Tensor& parameter) {
  Promises& promises = all_promises();
  const std::lock_guard lock(promises.mutex);
  std::erase_if(promises.parameters, [](const auto& known) { return known.second.expired(); });
  const auto& impl = parameter.getIntrusivePtr();
  promises.parameters.insert_or_assign(impl.get(), c10::weak_intrusive_ptr(impl));
}

bool promises_rows(const at::Tensor& parameter) {
  Promises& promises = all_promises();
  const std::lock_guard lock(promises.mutex);
  const auto found = promises.parameters.find(parameter.unsafeGetTensorImpl());
  return found != promises.parameters.end() && !found->second.expired();
}

bool hand_over_rows(const at::Tensor& gradient, const at::Tensor& ids, const at::Tensor& rows) {
  if (gradient.is_meta()) return false;
  Open& open = all_open();
  const std::lock_guard lock(open.mutex);
  const auto found = open.by_address.find(gradient.const_data_ptr());
  if (found == open.by_address.end()) return false;
  found->second->rows_.push_back({ids.reshape({-1}), rows.reshape({-1, rows.size(-1)})});
  return true;
}

}  // namespace tessera
