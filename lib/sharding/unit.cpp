// SPDX-License-Identifier: MIT
#include "tessera/sharding/unit.h"

namespace tessera {

void bind_parameters(const ParameterUnit& unit, const at::Tensor& flat, int64_t begin,
                     int64_t end) {
  const auto& entries = unit.layout.entries();
  for (size_t i = 0; i < entries.size(); ++i) {
    if (entries[i].range.offset < begin || entries[i].range.offset >= end) continue;
    for (at::Tensor handle : unit.handles[i]) handle.set_data(view_of(flat, entries[i], begin));
  }
}

void bind_gradients(const ParameterUnit& unit, const at::Tensor& flat) {
  const auto& entries = unit.layout.entries();
  for (size_t i = 0; i < entries.size(); ++i) {
    for (const auto& handle : unit.handles[i]) handle.mutable_grad() = view_of(flat, entries[i]);
  }
}

}  // namespace tessera
