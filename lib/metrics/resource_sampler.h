// SPDX-License-Identifier: MIT
#pragma once
// Samples memory and utilisation of the node and its GPUs while a run goes on.
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

// Memory of a process and all its descendants, from /proc. Processes that end while they are read
// count as zero.
struct ProcessTreeMemory {
  int64_t processes = 0;
  int64_t rss_bytes = 0;
  std::optional<int64_t> pss_bytes;  // no value when the kernel hides it
};
ProcessTreeMemory process_tree_memory(pid_t root);

// The process whose tree holds all ranks of this node: the launcher's daemon under mpirun, srun or
// torchrun, else this process.
pid_t node_tree_root(const std::string& launcher);

// The GPUs this process may use, read through NVML; empty when there is no driver. Never throws.
class GpuMonitor {
 public:
  struct Gpu {
    int64_t index = 0;  // the driver's
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
  // Those at these places (pci_address()), whatever this process may use; in this order, without
  // what the driver does not know.
  explicit GpuMonitor(const std::vector<std::string>& pci_addresses);
  ~GpuMonitor();
  const std::vector<Gpu>& gpus() const;
  Reading read(size_t i) const;
  Clocks clocks(size_t i) const;
  int nvlinks(size_t i) const;  // active ones
  // How two GPUs reach each other: "NVLink", or as what they share is called ("PCIe switch", "host
  // bridge", "NUMA node", "other NUMA nodes"); "" where the driver does not say.
  std::string path_between(size_t i, size_t j) const;
  std::string driver_version() const;  // "" without a driver

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

struct ResourceSamplerOptions {
  std::chrono::milliseconds interval{1000};
  pid_t tree_root = 0;                 // 0: this process
  std::vector<std::string> gpus = {};  // their pci_address()
  std::function<std::optional<int64_t>()> pinned_bytes =
      {};  // called on the sampler's thread; may be empty
};

// Calls sink with one record per GPU (one in all without GPUs) at once, at every interval and once
// more when it is destroyed.
class ResourceSampler {
 public:
  ResourceSampler(ResourceSamplerOptions options, std::function<void(const ResourceRecord&)> sink);
  ~ResourceSampler();  // stops and joins the thread
  // Ends sampling; returns the Error with which the sink ended it before, if it did.
  std::exception_ptr stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera::metrics
