// SPDX-License-Identifier: MIT
#include "backends/offload/host_share.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <limits>
#include <string>

#include "lib/core/hash.h"
#include "lib/core/host_memory.h"
#include "lib/core/host_threads.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

// All-gathers every rank's numbers, by rank.
template <size_t kCount>
std::vector<std::array<int64_t, kCount>> exchange(Communicator& world,
                                                  const std::array<int64_t, kCount>& mine) {
  if (world.device().is_meta()) return {mine};  // no other rank exists
  const at::Tensor input = at::tensor(at::ArrayRef<int64_t>(mine), at::kLong).to(world.device());
  at::Tensor output = at::empty({world.size() * static_cast<int64_t>(kCount)}, input.options());
  world.all_gather(output, input).wait();
  output = output.to(at::kCPU);
  std::vector<std::array<int64_t, kCount>> all(static_cast<size_t>(world.size()));
  const auto* values = output.const_data_ptr<int64_t>();
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::copy_n(values + rank * kCount, kCount, all[rank].begin());
  }
  return all;
}

// Identity that differs between hosts, and between containers with separate memory.
int64_t host_identity() {
  std::string text(256, '\0');
  gethostname(text.data(), text.size());
  std::ifstream boot("/proc/sys/kernel/random/boot_id");
  std::string id;
  boot >> id;
  text += id;
  return static_cast<int64_t>(xxh3_64(text.data(), text.size()));
}

}  // namespace

HostShare find_host_share(Communicator& world) {
  HostShare share{host_identity(), cores_near(world.device())};
  const auto cores_hash = static_cast<int64_t>(
      xxh3_64(share.cores.data(), share.cores.size() * sizeof(share.cores.front())));
  const std::array<int64_t, 2> mine{share.host, cores_hash};
  int index = 0, count = 0;
  const auto all = exchange(world, mine);
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] != mine) continue;
    if (static_cast<int>(rank) < world.rank()) ++index;
    ++count;
  }
  const auto cores = static_cast<int>(share.cores.size());
  share.cores = share_of_cores(share.cores, index, count);
  share.threads = cores < count ? 1 : static_cast<int>(share.cores.size());
  return share;
}

int thread_count(const OffloadConfig& config, const HostShare& share) {
  return config.threads > 0 ? config.threads : share.threads;
}

void require_host_memory(Communicator& world, int64_t host, int64_t bytes, const char* what) {
  if (world.device().is_meta()) return;  // nothing is allocated
  const auto all = exchange<3>(world, {host, bytes, available_host_memory()});
  for (size_t rank = 0; rank < all.size(); ++rank) {  // hosts in the order of their first ranks
    int64_t needed = 0, available = std::numeric_limits<int64_t>::max();
    for (const auto& [other_host, other_bytes, other_available] : all) {
      if (other_host != all[rank][0]) continue;
      needed += other_bytes;
      available = std::min(available, other_available);
    }
    check(needed <= available, ErrorCode::kResourceExhausted,
          "offload: the ranks on the host of rank ", rank, " need ", needed,
          " bytes of host memory for ", what, ", but ", available,
          " are available there; use more hosts, a strategy that shards over more ranks, or "
          "offload less");
  }
}

}  // namespace tessera
