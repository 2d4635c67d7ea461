// SPDX-License-Identifier: MIT
#include "tessera/core/async_scalars.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <numeric>
#include <utility>

namespace tessera {

// Copies values of one dtype together; converting each would take a kernel of its own.
AsyncScalars::AsyncScalars(const std::vector<at::Tensor>& values) {
  std::map<at::ScalarType, std::vector<size_t>> of_type;
  for (size_t i = 0; i < values.size(); ++i) of_type[values[i].scalar_type()].push_back(i);
  for (auto& [type, places] : of_type) {
    std::vector<at::Tensor> scalars;
    for (size_t i : places) scalars.push_back(values[i].detach().reshape({}));
    begin(at::stack(scalars), std::move(places));
  }
  count_ = values.size();
  if (!values.empty()) end(values.front().device());
}

AsyncScalars::AsyncScalars(const at::Tensor& values) : count_(static_cast<size_t>(values.numel())) {
  std::vector<size_t> places(count_);
  std::iota(places.begin(), places.end(), size_t{0});
  begin(values.detach(), std::move(places));
  end(values.device());
}

void AsyncScalars::begin(const at::Tensor& packed, std::vector<size_t> places) {
  at::Tensor host = packed;
  if (!packed.is_cpu()) {
    host = at::empty(packed.sizes(), packed.options().device(at::kCPU).pinned_memory(true));
    host.copy_(packed, /*non_blocking=*/true);
  }
  groups_.push_back({std::move(host), std::move(places)});
}

void AsyncScalars::end(at::Device device) {
  if (device.is_cpu()) return;
  copied_ = std::make_unique<c10::Event>(device.type());
  copied_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

std::vector<double> AsyncScalars::read() {
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
