// SPDX-License-Identifier: MIT
#include "backends/common/activation_offload.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "lib/core/host_memory.h"
#include "lib/core/meta.h"

namespace tessera {
namespace {

// Threads that touch new page-locked memory first.
constexpr int kTouchingThreads = 4;
// Buffers are a multiple of this, so that rows of similar length share them.
constexpr int64_t kBufferMultiple = 4096;

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

}  // namespace

HostBufferPool::HostBufferPool(at::Device device, bool pinned)
    : device_(device),
      pinned_(pinned),
      threads_(device.is_cuda() ? kTouchingThreads : 1, cores_near(device)) {}

HostBufferPool::~HostBufferPool() {
  for (const Buffer& buffer : free_) buffer.read.synchronize();
}

HostBufferPool::Buffer HostBufferPool::take(int64_t bytes) {
  const auto suffices = [&](const Buffer& buffer) { return buffer.bytes.numel() >= bytes; };
  auto best = std::ranges::find_if(free_, suffices);
  for (auto it = best; it != free_.end(); ++it) {
    if (suffices(*it) && it->bytes.numel() < best->bytes.numel()) best = it;
  }
  if (best != free_.end()) {
    Buffer found = std::move(*best);
    free_.erase(best);
    return found;
  }
  drop_smaller();
  const int64_t capacity = (bytes + kBufferMultiple - 1) / kBufferMultiple * kBufferMultiple;
  Buffer made{host_zeros_beside(device_, capacity, at::kByte, pinned_, threads_), {}};
  bytes_ += capacity;
  return made;
}

// Rows have grown: the largest free buffer, which did not suffice, makes room for a larger one.
void HostBufferPool::drop_smaller() {
  const auto largest = std::ranges::max_element(
      free_, {}, [](const Buffer& buffer) { return buffer.bytes.numel(); });
  if (largest == free_.end() || !largest->read.done()) return;
  bytes_ -= largest->bytes.numel();
  free_.erase(largest);
}

OffloadedTensors::~OffloadedTensors() {
  for (Entry& entry : entries_) {
    // Copies into memory that is about to be reused have ended for all later work.
    if (entry.device.defined()) fetched_.block(entry.device.device());
    entry.host.reset();
    pool_->give_back(std::move(entry.buffer));
  }
}

ActivationOffload::ActivationOffload(at::Device device, bool pin_memory)
    : device_(device),
      pinned_(pin_memory && is_gpu(device)),
      pool_(std::make_shared<HostBufferPool>(device, pin_memory)),
      to_host_(side_stream(device)),
      to_device_(side_stream(device)) {}

ActivationOffload::~ActivationOffload() {
  for (const Flight& flight : in_flight_) flight.written.synchronize();
}

bool ActivationOffload::is_movable(const at::Tensor& tensor) {
  return tensor.defined() && tensor.numel() > 0 && at::isFloatingType(tensor.scalar_type()) &&
         tensor.is_non_overlapping_and_dense();
}

void ActivationOffload::send(OffloadedTensors& to, size_t place, const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  OffloadedTensors::Entry& entry = to.entries_.emplace_back();
  entry.place = place;
  entry.buffer = pool_->take(bytes_of(tensor));
  entry.requires_grad = tensor.requires_grad();
  {
    const MetaOnHost on_host;
    entry.host = entry.buffer.bytes.narrow(0, 0, bytes_of(tensor))
                     .view(tensor.scalar_type())
                     .as_strided(tensor.sizes(), tensor.strides());
  }
  Marker ready;
  ready.record(device_);
  ready.block(to_host_);
  entry.buffer.read.block(to_host_);
  {
    const StreamScope scope(to_host_);
    entry.host.copy_(tensor.detach(), /*non_blocking=*/true);
  }
  Marker written;
  entry.written.record(to_host_);
  written.record(to_host_);
  to_host_bytes_ += bytes_of(tensor);
  in_flight_.push_back({tensor.detach(), std::move(written)});
}

void ActivationOffload::settle(size_t count) {
  for (; count > 0 && !in_flight_.empty(); --count) {
    in_flight_.front().written.block(device_);
    in_flight_.pop_front();
  }
}

void ActivationOffload::fetch(OffloadedTensors& from) {
  if (std::exchange(from.is_fetched_, true)) return;
  const at::NoGradGuard no_grad;
  for (OffloadedTensors::Entry& entry : from.entries_) {
    entry.device = at::empty_strided(entry.host.sizes(), entry.host.strides(),
                                     entry.host.options().device(device_));
    entry.written.block(to_device_);
    to_device_bytes_ += bytes_of(entry.host);
  }
  Marker room;
  room.record(device_);
  room.block(to_device_);
  {
    const StreamScope scope(to_device_);
    for (OffloadedTensors::Entry& entry : from.entries_) {
      entry.device.copy_(entry.host, /*non_blocking=*/true);
      entry.buffer.read.record(to_device_);
    }
  }
  from.fetched_.record(to_device_);
}

std::vector<std::pair<size_t, at::Tensor>> ActivationOffload::take(OffloadedTensors& from) {
  fetch(from);
  from.fetched_.block(device_);
  std::vector<std::pair<size_t, at::Tensor>> tensors;
  for (OffloadedTensors::Entry& entry : from.entries_) {
    tensors.emplace_back(entry.place, std::exchange(entry.device, {}));
    tensors.back().second.set_requires_grad(entry.requires_grad);
  }
  return tensors;
}

void ActivationOffload::add_memory(StrategyMemory& memory) const {
  memory.host_activation_bytes += pool_->bytes();
  memory.host_bytes += pool_->bytes();
  if (pinned_) memory.pinned_bytes += pool_->bytes();
}

void ActivationOffload::add_traffic(OffloadReport& report) const {
  report.activation_bytes += to_host_bytes_;
  report.bytes_to_host += to_host_bytes_;
  report.bytes_to_device += to_device_bytes_;
}

}  // namespace tessera
