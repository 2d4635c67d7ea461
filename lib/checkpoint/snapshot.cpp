// SPDX-License-Identifier: MIT
#include "lib/checkpoint/snapshot.h"

#include <ATen/ATen.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "lib/core/host_memory.h"
#include "lib/core/host_threads.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int64_t kAlignment = 512;
// Bytes; small enough that a part of the values fits where not all do.
constexpr int64_t kRun = int64_t{256} << 20;
// Reserved for allocations of the next steps.
constexpr int64_t kDeviceMargin = int64_t{2} << 30;
constexpr int64_t kHostMargin = int64_t{2} << 30;
constexpr int kTouching = 8;  // threads
constexpr int64_t kSmallHostPart = int64_t{1} << 20;

// True if forward may change the values, see StateTensor::kind.
bool forward_may_change(const ShardPiece& piece) {
  const auto width = static_cast<int64_t>(c10::elementSize(piece.dtype()));
  return piece.key.kind == "buffer" ||
         c10::multiply_integers(piece.slice.shape) * width < kSmallState;
}

// A tensor of a piece.
struct Kept {
  at::Tensor value;
  bool forward_may_change = false;
};

std::vector<Kept> all_kept(const std::vector<ShardPiece>& pieces) {
  std::vector<Kept> all;
  for (const ShardPiece& piece : pieces) {
    for (const at::Tensor* value : piece.tensors()) {
      all.push_back({*value, forward_may_change(piece)});
    }
  }
  return all;
}

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

uintptr_t address(const at::Tensor& value) {
  return reinterpret_cast<uintptr_t>(value.const_data_ptr());
}

// Undefined if no contiguous block is free.
at::Tensor device_block(at::Device device, int64_t bytes) {
  if (bytes == 0) return {};
  try {
    return at::empty({bytes}, at::dtype(at::kByte).device(device));
  } catch (const c10::OutOfMemoryError&) {
    return {};
  }
}

at::Tensor host_memory(at::Device source, int64_t bytes, int host_ranks) {
  // Tiny parts, such as step counts: querying the host topology takes longer than a save.
  if (bytes < kSmallHostPart) return at::empty({bytes}, at::kByte);
  if (available_host_memory() < (bytes + kHostMargin) * host_ranks) return {};
  try {
    // Touches a block of tens of GB page by page, and leaves cores to the run's threads.
    const std::vector<int> cores = cores_near(source);
    const int count = std::clamp(static_cast<int>(cores.size()) / (2 * host_ranks), 2, kTouching);
    HostThreads threads(count, cores);
    return host_zeros(bytes, at::kByte, source.is_cuda(), threads);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kResourceExhausted) throw;
    return {};
  }
}

}  // namespace

Snapshot::~Snapshot() = default;

void Snapshot::find_runs(const std::vector<ShardPiece>& pieces) {
  runs_.clear();
  const std::vector<Kept> kept = all_kept(pieces);
  offsets_.assign(kept.size(), {});
  std::vector<size_t> order(kept.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto key = [&](size_t i) {
    const at::Tensor& value = kept[i].value;
    return std::tuple(kept[i].forward_may_change, value.is_cpu(), value.scalar_type(),
                      address(value));
  };
  std::ranges::sort(order, {}, key);
  const auto begin_of = [&](size_t i) { return kept[i].value.storage_offset(); };
  const auto end_of = [&](size_t i) { return begin_of(i) + kept[i].value.numel(); };
  for (size_t first = 0; first < order.size();) {
    const auto& [value, changes] = kept[order[first]];
    const auto width = static_cast<int64_t>(value.element_size());
    const int64_t begin = begin_of(order[first]);
    int64_t end = end_of(order[first]);
    size_t next = first + 1;
    offsets_[order[first]] = {runs_.size(), 0};
    for (; next < order.size(); ++next) {
      const size_t i = order[next];
      const int64_t gap = begin_of(i) - end;
      const bool same = kept[i].forward_may_change == changes &&
                        kept[i].value.scalar_type() == value.scalar_type() &&
                        kept[i].value.is_alias_of(value);
      if (!same || gap < 0 || gap * width > kAlignment) break;
      if ((end_of(i) - begin) * width > kRun) break;
      offsets_[i] = {runs_.size(), begin_of(i) - begin};
      end = end_of(i);
    }
    runs_.push_back({.values = value.as_strided({end - begin}, {1}, begin),
                     .copy = {},
                     .forward_may_change = changes});
    first = next;
  }
}

// Free memory, plus the last copy's cached memory that steps do not need.
int64_t Snapshot::device_budget(at::Device device) {
  const MemoryUse use = memory_use(device);
  if (!peak_of_steps_) peak_of_steps_ = use.peak_allocated_bytes;
  const int64_t cached =
      std::clamp<int64_t>(use.reserved_bytes - *peak_of_steps_, 0, device_bytes_);
  return device_memory(device).first + cached - kDeviceMargin;
}

// Assigns memory to every run's copy.
bool Snapshot::find_memory(std::vector<Run*>& on_device, std::vector<Run*>& on_host) {
  const auto is_gpu = [](const Run& run) { return run.values.is_cuda(); };
  const auto gpu = std::ranges::find_if(runs_, is_gpu);
  const at::Device device = gpu == runs_.end() ? at::Device(at::kCPU) : gpu->values.device();
  int64_t device_bytes = 0, host_bytes = 0;
  const int64_t budget = device.is_cuda() ? device_budget(device) : 0;
  for (Run& run : runs_) {
    const bool stays = is_gpu(run) && device_bytes + aligned(run.bytes()) <= budget;
    (stays ? device_bytes : host_bytes) += aligned(run.bytes());
    (stays ? on_device : on_host).push_back(&run);
  }
  const at::Tensor copies = device_block(device, device_bytes);
  if (device_bytes > 0 && !copies.defined()) {
    host_bytes += std::exchange(device_bytes, 0);
    for (Run* run : std::exchange(on_device, {})) on_host.push_back(run);
  }
  device_bytes_ = device_bytes;
  if (host_bytes > 0 && (!host_.defined() || host_.numel() < host_bytes)) {
    host_ = at::Tensor();
    host_ = host_memory(device, host_bytes, host_ranks_);
    if (!host_.defined()) return false;
  }
  const auto hand_out = [](const std::vector<Run*>& to, const at::Tensor& memory) {
    int64_t used = 0;
    for (Run* run : to) {
      run->copy = memory.narrow(0, used, run->bytes()).view(run->values.scalar_type());
      used += aligned(run->bytes());
    }
  };
  hand_out(on_device, copies);
  hand_out(on_host, host_);
  return true;
}

void Snapshot::reserve(const std::vector<ShardPiece>& pieces) {
  const at::Device device = device_of(pieces);
  int64_t host_bytes = 0, device_bytes = 0;
  for (const Kept& kept : all_kept(pieces)) {
    const bool on_device = device.is_cuda() && !kept.value.is_cpu();
    (on_device ? device_bytes : host_bytes) += aligned(static_cast<int64_t>(kept.value.nbytes()));
  }
  if (device_bytes > 0) {
    // Freed at once, but cached by the allocator, since allocating is the slow part.
    const int64_t fits = std::clamp<int64_t>(device_budget(device), 0, device_bytes);
    const at::Tensor block = device_block(device, fits);
    device_bytes_ = block.defined() ? fits : 0;
    if (device_bytes_ < device_bytes) host_bytes += device_bytes - device_bytes_ + kRun;
  }
  if (host_bytes < kSmallHostPart || host_.defined()) return;
  reserved_ = std::async(std::launch::async, host_memory, device, host_bytes, host_ranks_);
}

bool Snapshot::take(const std::vector<ShardPiece>& pieces, bool late) {
  if (reserved_.valid()) host_ = reserved_.get();
  find_runs(pieces);
  std::vector<Run*> on_device, on_host;
  if (!find_memory(on_device, on_host)) return false;
  for (Run* run : on_device) run->copy.copy_(run->values, /*non_blocking=*/true);
  rest_.clear();
  for (Run* run : on_host) {
    if (late && !run->forward_may_change) {
      rest_.push_back(static_cast<size_t>(run - runs_.data()));
    } else {
      run->copy.copy_(run->values, /*non_blocking=*/true);
    }
  }
  return true;
}

void Snapshot::copy_the_rest() {
  for (const size_t run : rest_) runs_[run].copy.copy_(runs_[run].values, /*non_blocking=*/true);
}

void Snapshot::give(std::vector<ShardPiece>& pieces) {
  size_t next = 0;
  for (ShardPiece& piece : pieces) {
    for (at::Tensor* value : piece.tensors()) {
      const auto& [run, begin] = offsets_[next++];
      *value = runs_[run].copy.narrow(0, begin, value->numel());
    }
  }
  runs_.clear();  // the device memory is freed with the pieces
}

}  // namespace tessera
