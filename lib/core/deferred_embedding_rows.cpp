// SPDX-License-Identifier: MIT
#include "lib/core/deferred_embedding_rows.h"

namespace tessera {
namespace {

DeferredEmbeddingRows::GradientKey key_of(const at::Tensor& gradient) {
  return {gradient.storage().unsafeGetStorageImpl(), gradient.storage_offset()};
}

}  // namespace

DeferredEmbeddingRows::GradientKey DeferredEmbeddingRows::open(const at::Tensor& gradient) {
  const GradientKey key = key_of(gradient);
  const std::lock_guard lock(mutex_);
  open_[key].clear();
  return key;
}

std::vector<DeferredEmbeddingRows::Rows> DeferredEmbeddingRows::close(const GradientKey& key) {
  const std::lock_guard lock(mutex_);
  auto closed = open_.extract(key);
  return closed.empty() ? std::vector<Rows>{} : std::move(closed.mapped());
}

bool DeferredEmbeddingRows::hand_over(const at::Tensor& gradient, const at::Tensor& ids,
                                      const at::Tensor& rows) {
  const std::lock_guard lock(mutex_);
  const auto found = open_.find(key_of(gradient));
  if (found == open_.end()) return false;
  found->second.push_back({ids.reshape({-1}), rows.reshape({-1, rows.size(-1)})});
  return true;
}

}  // namespace tessera
