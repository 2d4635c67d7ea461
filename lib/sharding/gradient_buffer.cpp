// SPDX-License-Identifier: MIT
#include "tessera/sharding/gradient_buffer.h"

#include <ATen/ops/fill.h>
#include <ATen/ops/zero.h>

#include <limits>

#include "tessera/core/lazy_zero.h"

namespace tessera {

GradientBuffer::GradientBuffer(const ParameterUnit& unit, at::Tensor flat)
    : flat_(std::move(flat)) {
  bind_gradients(unit, flat_);
  const auto& entries = unit.layout.entries();
  int64_t end = 0;  // end of the lazily zero or cleared elements so far
  const auto clear_until = [&](int64_t begin) {
    if (begin > end) to_clear_.push_back(flat_.narrow(0, end, begin - end));
  };
  for (size_t i = 0; i < entries.size(); ++i) {
    if (i >= unit.blank.size() || !unit.blank[i]) continue;
    const FlatRange& range = entries[i].range;
    clear_until(range.offset);
    end = range.offset + range.numel;
    blank_.push_back(slice_of(flat_, range));
    for (const at::Tensor& handle : unit.handles[i]) {
      const auto settle = [gradient = blank_.back()](const at::Tensor&) {
        materialize_lazy_zero(gradient);
      };
      hooks_.emplace_back(handle, handle.register_hook(settle));
    }
  }
  clear_until(flat_.numel());
}

GradientBuffer::~GradientBuffer() {
  discard_lazy_zero(blank_);
  for (const auto& [handle, hook] : hooks_) handle.remove_hook(hook);
}

void GradientBuffer::begin() {
  for (at::Tensor& range : to_clear_) range.zero_();
  begin_cleared();
}

void GradientBuffer::begin_cleared() {
#ifndef NDEBUG
  // Exposes code that accumulates without consume_lazy_zero() or materialize_lazy_zero().
  for (at::Tensor& gradient : blank_) gradient.fill_(std::numeric_limits<double>::quiet_NaN());
#endif
  declare_lazy_zero(blank_);
}

void GradientBuffer::complete() { clear_lazy_zero(blank_); }

}  // namespace tessera
