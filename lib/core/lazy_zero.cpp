// SPDX-License-Identifier: MIT
#include "tessera/core/lazy_zero.h"

#include <ATen/ops/zero.h>

#include <map>
#include <mutex>
#include <utility>

namespace tessera {
namespace {

struct Extent {
  const char *begin, *end;
};

// Address range of all elements, with any gaps between them.
Extent extent_of(const at::Tensor& x) {
  int64_t last = 0;
  for (int64_t i = 0; i < x.dim(); ++i) last += (x.size(i) - 1) * x.stride(i);
  const auto* begin = static_cast<const char*>(x.const_data_ptr());
  return {begin, begin + (last + 1) * static_cast<int64_t>(x.element_size())};
}

bool has_memory(const at::Tensor& x) { return x.numel() > 0 && !x.is_meta(); }

struct Registry {
  std::mutex mutex;
  std::map<const char*, at::Tensor> blank;  // keyed by address; never overlapping

  static Registry& instance() {
    // Never destroyed: tensors outlive static objects.
    static Registry* const registry = new Registry;
    return *registry;
  }

  // Removes and returns the tensors that overlap the extent, in order of address.
  std::vector<at::Tensor> take(const Extent& extent) {
    auto first = blank.lower_bound(extent.begin);
    if (first != blank.begin()) {
      const auto before = std::prev(first);
      if (extent_of(before->second).end > extent.begin) first = before;
    }
    std::vector<at::Tensor> taken;
    while (first != blank.end() && first->first < extent.end) {
      taken.push_back(std::move(first->second));
      first = blank.erase(first);
    }
    return taken;
  }
};

// True if the tensors are contiguous and fill the extent.
bool fill(const std::vector<at::Tensor>& tensors, const Extent& extent) {
  const char* next = extent.begin;
  for (const at::Tensor& tensor : tensors) {
    const Extent own = extent_of(tensor);
    if (own.begin != next) return false;
    next = own.end;
  }
  return next == extent.end;
}

}  // namespace

void declare_lazy_zero(const std::vector<at::Tensor>& tensors) {
  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  for (const at::Tensor& tensor : tensors) {
    if (tensor.is_meta()) at::Tensor(tensor).zero_();  // visible to the follower of a dry run
    if (!has_memory(tensor)) continue;
    const Extent extent = extent_of(tensor);
    registry.take(extent);
    registry.blank.emplace(extent.begin, tensor);
  }
}

namespace {

// Removes and returns the given tensors that were blank as a whole.
std::vector<at::Tensor> taken_back(const std::vector<at::Tensor>& tensors) {
  Registry& registry = Registry::instance();
  const std::lock_guard lock(registry.mutex);
  std::vector<at::Tensor> taken;
  for (const at::Tensor& tensor : tensors) {
    if (!has_memory(tensor)) continue;
    const Extent extent = extent_of(tensor);
    const auto found = registry.blank.find(extent.begin);
    if (found == registry.blank.end() || extent_of(found->second).end != extent.end) continue;
    taken.push_back(std::move(found->second));
    registry.blank.erase(found);
  }
  return taken;
}

}  // namespace

void clear_lazy_zero(const std::vector<at::Tensor>& tensors) {
  for (at::Tensor& tensor : taken_back(tensors)) tensor.zero_();
}

void discard_lazy_zero(const std::vector<at::Tensor>& tensors) { taken_back(tensors); }

bool consume_lazy_zero(const at::Tensor& x) {
  if (!has_memory(x)) return false;
  Registry& registry = Registry::instance();
  std::vector<at::Tensor> taken;
  {
    const std::lock_guard lock(registry.mutex);
    if (registry.blank.empty()) return false;
    taken = registry.take(extent_of(x));
  }
  if (taken.empty()) return false;
  if (x.is_non_overlapping_and_dense() && fill(taken, extent_of(x))) return true;
  for (at::Tensor& tensor : taken) tensor.zero_();
  return false;
}

void materialize_lazy_zero(const at::Tensor& x) {
  if (consume_lazy_zero(x)) at::Tensor(x).zero_();
}

}  // namespace tessera
