#include "lib/checkpoint/snapshot.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>

#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/core/host_memory.h"
#include "tessera/core/host_threads.h"

namespace tessera {
namespace {

constexpr int64_t kAlignment = 512;
// Stays free for what the next steps allocate.
constexpr int64_t kDeviceMargin = int64_t{1} << 30;
constexpr int64_t kHostMargin = int64_t{2} << 30;
constexpr int64_t kSmallHostPart = int64_t{1} << 20;

// See StateTensor::kind.
bool forward_may_change(const ShardPiece& piece) {
  const auto width = static_cast<int64_t>(piece.value.element_size());
  return piece.key.kind == "buffer" ||
         c10::multiply_integers(piece.slice.shape) * width < kSmallState;
}

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

at::Tensor device_buffer(at::Device device, int64_t bytes) {
  if (device_memory(device).first < bytes + kDeviceMargin) return {};
  try {
    return at::empty({bytes}, at::dtype(at::kByte).device(device));
  } catch (const c10::OutOfMemoryError&) {
    return {};
  }
}

at::Tensor host_buffer(at::Device source, int64_t bytes) {
  // A step count or two: looking at the host's topology would take longer than all of a save.
  if (bytes < kSmallHostPart) return at::empty({bytes}, at::kByte);
  if (available_host_memory() < bytes + kHostMargin) return {};
  try {
    HostThreads threads(2, cores_near(source));
    return host_zeros(bytes, at::kByte, source.is_cuda(), threads);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResourceExhausted) throw;
    return {};
  }
}

}  // namespace

bool Snapshot::take(std::vector<ShardPiece>& pieces, bool late) {
  if (pieces.empty()) return true;
  // Values on the host and on the device may be mixed (offload).
  int64_t on_device = 0, on_host = 0;
  const at::Device device = device_of(pieces);
  for (const ShardPiece& piece : pieces) {
    (piece.value.is_cpu() ? on_host : on_device) +=
        aligned(static_cast<int64_t>(piece.value.nbytes()));
  }
  const at::Tensor copies = on_device > 0 ? device_buffer(device, on_device) : at::Tensor();
  const int64_t host_bytes = on_host + (copies.defined() ? 0 : on_device);
  if (host_bytes > 0 && (!host_.defined() || host_.numel() < host_bytes)) {
    host_ = at::Tensor();
    host_ = host_buffer(device, host_bytes);
    if (!host_.defined()) return false;
  }
  int64_t device_used = 0, host_used = 0;
  std::vector<at::Tensor> on_device_from, on_device_to;  // few launches for all of them
  for (ShardPiece& piece : pieces) {
    const bool stays = copies.defined() && !piece.value.is_cpu();
    int64_t& used = stays ? device_used : host_used;
    const auto bytes = static_cast<int64_t>(piece.value.nbytes());
    const at::Tensor copy =
        (stays ? copies : host_).narrow(0, used, bytes).view(piece.value.scalar_type());
    if (stays) {
      on_device_from.push_back(piece.value);
      on_device_to.push_back(copy);
    } else if (late && !forward_may_change(piece)) {
      rest_.emplace_back(copy, piece.value);
    } else {
      copy.copy_(piece.value, /*non_blocking=*/true);
    }
    piece.value = copy;
    used += aligned(bytes);
  }
  if (!on_device_to.empty()) {
    at::_foreach_copy_(on_device_to, on_device_from, /*non_blocking=*/true);
  }
  return true;
}

void Snapshot::copy_the_rest() {
  for (const auto& [copy, value] : std::exchange(rest_, {})) copy.copy_(value);
}

}  // namespace tessera
