// SPDX-License-Identifier: MIT
#include "lib/core/late_rows.h"

#include <c10/core/TensorImpl.h>
#include <c10/util/intrusive_ptr.h>

#include <map>
#include <mutex>

namespace tessera {

struct OpenRows {
  std::mutex mutex;
  std::map<LateRows::Place, LateRows*> by_place;

  static OpenRows& instance() {
    static OpenRows open;
    return open;
  }
};

namespace {

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
  OpenRows& open = OpenRows::instance();
  const std::lock_guard lock(open.mutex);
  place_ = place_of(gradient);
  open.by_place[place_] = this;
}

void LateRows::close() {
  if (place_.first == nullptr) return;
  OpenRows& open = OpenRows::instance();
  const std::lock_guard lock(open.mutex);
  open.by_place.erase(place_);
  place_ = {};
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
  OpenRows& open = OpenRows::instance();
  const std::lock_guard lock(open.mutex);
  const auto found = open.by_place.find(LateRows::place_of(gradient));
  if (found == open.by_place.end()) return false;
  found->second->rows_.push_back({ids.reshape({-1}), rows.reshape({-1, rows.size(-1)})});
  return true;
}

}  // namespace tessera
