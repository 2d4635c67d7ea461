// SPDX-License-Identifier: MIT
#include "tessera/core/late_values.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <utility>

namespace tessera {

// Values of one dtype are copied together: to convert each would be a kernel of its own.
LateValues::LateValues(const std::vector<at::Tensor>& values) {
  std::map<at::ScalarType, std::vector<size_t>> of_type;
  for (size_t i = 0; i < values.size(); ++i) of_type[values[i].scalar_type()].push_back(i);
  for (auto& [type, places] : of_type) {
    std::vector<at::Tensor> scalars;
    for (size_t i : places) scalars.push_back(values[i].detach().reshape({}));
    at::Tensor packed = at::stack(scalars);
    if (packed.is_cpu()) {
      groups_.push_back({packed, std::move(places)});
      continue;
    }
    const at::Tensor host =
        at::empty(packed.sizes(), packed.options().device(at::kCPU).pinned_memory(true));
    host.copy_(packed, /*non_blocking=*/true);
    groups_.push_back({host, std::move(places)});
  }
  count_ = values.size();
  if (values.empty() || values.front().is_cpu()) return;
  const auto device = values.front().device();
  copied_ = std::make_unique<c10::Event>(device.type());
  copied_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

std::vector<double> LateValues::read() {
  if (copied_ != nullptr) copied_->synchronize();
  std::vector<double> values(count_);
  for (const auto& [host, places] : groups_) {
    const at::Tensor numbers = host.to(at::kDouble);
    for (size_t i = 0; i < places.size(); ++i) {
      values[places[i]] = numbers.const_data_ptr<double>()[i];
    }
  }
  return values;
}

}  // namespace tessera
