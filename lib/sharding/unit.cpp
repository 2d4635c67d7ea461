// SPDX-License-Identifier: MIT
#include "tessera/sharding/unit.h"

#include <ATen/ATen.h>

namespace tessera {

at::ScalarType stored_dtype(const ParameterUnit& unit, at::ScalarType compute) {
  return unit.coded() ? at::kFloat8_e4m3fn : compute;
}

at::Tensor stored_values(const ParameterUnit& unit, const at::Tensor& full_fp32,
                         at::ScalarType compute) {
  if (!unit.coded()) return full_fp32.to(compute);
  at::Tensor codes = full_fp32.to(at::kFloat8_e4m3fn);  // with the padding, which is zero
  const auto& entries = unit.layout.entries();
  for (size_t i = 0; i < entries.size(); ++i) {
    at::Tensor scaled = view_of(full_fp32, entries[i]).clone();
    scaled.div_(unit.scales[static_cast<int64_t>(i)]);
    view_of(codes, entries[i]).copy_(scaled);
  }
  return codes;
}

at::Tensor as_sent(const at::Tensor& values) {
  return values.scalar_type() == at::kFloat8_e4m3fn ? values.view(at::kByte) : values;
}

void scale_codes(const ParameterUnit& unit, const at::Tensor& codes) {
  const auto& entries = unit.layout.entries();
  for (size_t i = 0; i < entries.size(); ++i) {
    view_of(codes, entries[i]).mul_(unit.scales[static_cast<int64_t>(i)]);
  }
}

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
