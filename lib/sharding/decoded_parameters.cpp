// SPDX-License-Identifier: MIT
#include "lib/sharding/decoded_parameters.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "lib/ops/fp8_codes.h"
#include "tessera/core/error.h"

namespace tessera {

DecodedParameters::DecodedParameters(const std::vector<ParameterUnit>& units, at::ScalarType dtype,
                                     at::Device device)
    : units_(units), any_(std::ranges::any_of(units, &ParameterUnit::coded)) {
  if (!any_) return;
  std::vector<SlotUser> users;
  for (size_t unit = 0; unit < units.size(); ++unit) {
    users.push_back(
        {.numel = units[unit].coded() ? units[unit].layout.numel() : 0, .gather_group = unit});
  }
  slots_.emplace(users, /*depth=*/1, at::TensorOptions().dtype(dtype).device(device));
  for (size_t unit = 0; unit < units.size(); ++unit) {
    if (!units[unit].coded()) continue;
    bind_parameters(units[unit], slots_->buffer(unit), 0, units[unit].layout.numel());
  }
}

// [Note: decoded values are exact]
// A code has four binary digits and a scale is a power of two, so that their product has every
// digit in fp32, bf16 and fp16, but for numbers outside the dtype's range.
void DecodedParameters::acquire(size_t unit, const at::Tensor& gathered, const at::Tensor& resident,
                                bool decodes) {
  // Dry runs follow values to the handles.
  if (!decodes && !slots_->buffer(unit).is_meta()) {
    ++uses_of_codes_;
    return;
  }
  if (present_ == unit && uses_ > 0) {
    ++uses_;
    return;
  }
  check(uses_ == 0, ErrorCode::kInternal, "frozen parameters of block ", units_[unit].name,
        " were asked for while those of ", units_[present_.value_or(0)].name, " are still in use");
  uses_ = 1;
  if (present_ == unit) return;
  present_ = unit;
  const at::NoGradGuard no_grad;
  const int64_t begin = gathered.numel();
  const auto& entries = units_[unit].layout.entries();
  for (size_t e = 0; e < entries.size(); ++e) {
    const bool is_gathered = entries[e].range.offset < begin;
    const at::Tensor codes =
        is_gathered ? view_of(gathered, entries[e]) : view_of(resident, entries[e], begin);
    ops::fp8_decode({codes, units_[unit].scales[static_cast<int64_t>(e)]},
                    view_of(slots_->buffer(unit), entries[e]));
  }
}

void DecodedParameters::release(size_t unit) {
  if (uses_of_codes_ > 0) {
    --uses_of_codes_;
    return;
  }
  check(present_ == unit && uses_ > 0, ErrorCode::kInternal, "frozen parameters of block ",
        units_[unit].name, " were released without being acquired");
  --uses_;
}

void DecodedParameters::drop() {
  present_.reset();
  uses_ = uses_of_codes_ = 0;
}

int64_t DecodedParameters::scale_bytes() const {
  int64_t sum = 0;
  for (const ParameterUnit& unit : units_) {
    if (unit.coded()) sum += static_cast<int64_t>(unit.scales.storage().nbytes());
  }
  return sum;
}

int64_t DecodedParameters::buffer_bytes() const { return slots_ ? slots_->bytes() : 0; }

}  // namespace tessera
