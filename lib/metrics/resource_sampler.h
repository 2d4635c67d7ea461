// SPDX-License-Identifier: MIT
#pragma once
// Periodic samples of memory and utilisation of the node and its GPUs.
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/metrics/event.h"

namespace tessera::metrics {

// Memory of a process and its descendants, from /proc. Processes that end meanwhile count as zero.
struct ProcessTreeMemory {
  int64_t processes = 0;
  int64_t rss_bytes = 0;
  std::optional<int64_t> pss_bytes;  // empty if the kernel hides it
};
ProcessTreeMemory process_tree_memory(pid_t root);

// Root of the process tree with all ranks of this node: the launcher's daemon under mpirun, srun or
// torchrun, else this process.
pid_t node_tree_root(const std::string& launcher);

// The GPUs visible to this process, through NVML; empty without a driver. Never throws.
class GpuMonitor {
 public:
  struct Gpu {
    int64_t index = 0;  // the driver's index
    std::string name;
  };
  struct Reading {
    std::optional<int64_t> memory_used_bytes;
    std::optional<double> utilisation_ratio, power_w;
  };
  struct Clocks {
    std::optional<int64_t> sm_mhz, most_mhz;  // of the multiprocessors
  };
  GpuMonitor();
  // GPUs at these PCI addresses (pci_address()), visible to this process or not, in this order;
  // unknown ones are omitted.
  explicit GpuMonitor(const std::vector<std::string>& pci_addresses);
  ~GpuMonitor();
  const std::vector<Gpu>& gpus() const;
  Reading read(size_t i) const;
  Clocks clocks(size_t i) const;
  int nvlinks(size_t i) const;  // active links
  // Connection of two GPUs: "NVLink", or their common ancestor ("PCIe switch", "host bridge", "NUMA
  // node", "other NUMA nodes"); "" if unknown.
  std::string path_between(size_t i, size_t j) const;
  std::string driver_version() const;  // "" without a driver

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct ResourceSamplerOptions {
  std::chrono::milliseconds interval{1000};
  pid_t tree_root = 0;                 // 0: this process
  std::vector<std::string> gpus = {};  // by pci_address()
  std::function<std::optional<int64_t>()> pinned_bytes =
      {};  // called on the sampler's thread; may be empty
};

// Calls sink with one record per GPU (one in total without GPUs): at once, at every interval, and
// at destruction.
class ResourceSampler {
 public:
  ResourceSampler(ResourceSamplerOptions options, std::function<void(const ResourceRecord&)> sink);
  ~ResourceSampler();  // stops and joins the thread
  // Stops sampling. Returns the sink's Error, if one ended sampling earlier.
  std::exception_ptr stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::metrics
