#include "tessera/core/late_values.h"

#include <ATen/ATen.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace tessera {

LateValues::LateValues(const std::vector<at::Tensor>& values) {
  std::vector<at::Tensor> scalars;
  for (const auto& value : values) scalars.push_back(value.detach().reshape({}).to(at::kDouble));
  const at::Tensor packed = at::stack(scalars);
  if (packed.is_cpu()) {
    host_ = packed;
    return;
  }
  host_ = at::empty(packed.sizes(), packed.options().device(at::kCPU).pinned_memory(true));
  host_.copy_(packed, /*non_blocking=*/true);
  const auto device = packed.device();
  copied_ = std::make_unique<c10::Event>(device.type());
  copied_->record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
}

std::vector<double> LateValues::read() {
  if (copied_ != nullptr) copied_->synchronize();
  const double* begin = host_.const_data_ptr<double>();
  return {begin, begin + host_.numel()};
}

}  // namespace tessera
