// SPDX-License-Identifier: MIT
#include "lib/core/host_memory.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <limits>
#include <mutex>
#include <optional>
#include <string>

#include "lib/core/device_driver.h"
#include "lib/core/host_topology.h"
#include "lib/core/meta.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

std::optional<int64_t> number_in(const std::string& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (!(file >> value)) return std::nullopt;  // "max", or a missing file
  return value;
}

int64_t system_available() {
  std::ifstream file("/proc/meminfo");
  for (std::string key, unit; file >> key;) {
    int64_t kib = 0;
    if (key == "MemAvailable:" && file >> kib) return kib * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::numeric_limits<int64_t>::max();
}

// Bytes left in a control group; reclaimable page cache counts as free.
int64_t group_available(const std::string& limit_path, const std::string& usage_path,
                        const std::string& stat_path) {
  const auto limit = number_in(limit_path), usage = number_in(usage_path);
  if (!limit || !usage) return std::numeric_limits<int64_t>::max();
  int64_t cache = 0;
  std::ifstream stat(stat_path);
  for (std::string key; stat >> key;) {
    int64_t value = 0;
    if (!(stat >> value)) break;
    if (key == "inactive_file") cache = value;
  }
  return std::max<int64_t>(0, *limit - *usage + cache);
}

// The least over this process's group below /sys/fs/cgroup and its parents up to the root.
int64_t control_group_available() {
  int64_t least = std::numeric_limits<int64_t>::max();
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const bool unified = line.rfind("0::", 0) == 0;
    const size_t memory = line.find(":memory:");
    if (!unified && memory == std::string::npos) continue;
    const std::string root = unified ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory";
    std::string path = unified ? line.substr(3) : line.substr(memory + 8);
    const char* limit = unified ? "/memory.max" : "/memory.limit_in_bytes";
    const char* usage = unified ? "/memory.current" : "/memory.usage_in_bytes";
    for (;;) {
      const std::string folder = root + (path == "/" ? "" : path);
      least =
          std::min(least, group_available(folder + limit, folder + usage, folder + "/memory.stat"));
      if (path.empty() || path == "/") break;
      path.resize(path.rfind('/'));
    }
  }
  return least;
}

// Advises huge pages inside the block, which every step walks through.
void prefer_huge_pages(void* data, size_t bytes) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + bytes) / kHugePage * kHugePage;
  if (last > first) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);
}

// First touch by the threads, so that pages lie on the NUMA node of their cores.
void touch(void* data, size_t bytes, HostThreads& threads) {
  place_memory(data, bytes, threads.cores());
  constexpr size_t kPart = size_t{4} << 20;
  threads.run(static_cast<int64_t>((bytes + kPart - 1) / kPart), [&](int64_t part) {
    const size_t first = static_cast<size_t>(part) * kPart;
    std::memset(static_cast<char*>(data) + first, 0, std::min(kPart, bytes - first));
  });
}

class PinnedCount {
 public:
  void add(int64_t bytes) {
    const std::lock_guard lock(mutex_);
    use_.bytes += bytes;
    use_.peak_bytes = std::max(use_.peak_bytes, use_.bytes);
  }
  PinnedMemory use() {
    const std::lock_guard lock(mutex_);
    return use_;
  }

 private:
  std::mutex mutex_;
  PinnedMemory use_;
};

PinnedCount& pinned_here() {
  static PinnedCount count;
  return count;
}

}  // namespace

PinnedMemory pinned_memory() {
  PinnedMemory use = pinned_here().use();
  if (gpu_count() > 0) {
    const auto of_torch = at::getHostAllocator(at::kCUDA)->get_stats().allocated_bytes;
    use.bytes += of_torch.current;
    use.peak_bytes += of_torch.peak;
  }
  return use;
}

int64_t available_host_memory() { return std::min(system_available(), control_group_available()); }

at::Tensor host_zeros_beside(at::Device device, int64_t numel, at::ScalarType dtype, bool pinned,
                             HostThreads& threads) {
  if (!device.is_meta()) return host_zeros(numel, dtype, pinned && !device.is_cpu(), threads);
  const MetaOnHost on_host;
  return at::zeros({numel}, at::TensorOptions(dtype).device(device));
}

at::Tensor host_zeros(int64_t numel, at::ScalarType dtype, bool pinned, HostThreads& threads) {
  const auto options = at::TensorOptions().dtype(dtype).device(at::kCPU);
  const size_t bytes = static_cast<size_t>(numel) * c10::elementSize(dtype);
  if (!pinned || bytes == 0) {
    at::Tensor tensor = at::empty({numel}, options);
    prefer_huge_pages(tensor.data_ptr(), bytes);
    touch(tensor.data_ptr(), bytes, threads);
    return tensor;
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  check(data != MAP_FAILED, ErrorCode::kResourceExhausted, "the system refuses ", bytes,
        " bytes of host memory");
  prefer_huge_pages(data, bytes);
  touch(data, bytes, threads);
  const std::string refusal = pin_pages(data, bytes);
  if (!refusal.empty()) {
    munmap(data, bytes);
    fail(ErrorCode::kResourceExhausted, "cannot page-lock ", bytes,
         " bytes of host memory: ", refusal,
         ". Raise the limit (ulimit -l), or turn pinned memory off (pin_memory)");
  }
  pinned_here().add(static_cast<int64_t>(bytes));
  return at::from_blob(
      data, {numel},
      [bytes](void* pages) {
        pinned_here().add(-static_cast<int64_t>(bytes));
        unpin_pages(pages);
        munmap(pages, bytes);
      },
      options);
}

}  // namespace tessera
