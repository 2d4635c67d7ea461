// SPDX-License-Identifier: MIT
// NVML through dlopen, so that builds and hosts work without it. Declarations follow the NVML API
// reference.
#include <dlfcn.h>

#include <cstdlib>
#include <sstream>

#include "lib/metrics/resource_sampler.h"

namespace tessera::metrics {
namespace {

using Device = void*;
struct Memory {
  unsigned long long total, free, used;
};
struct Utilization {
  unsigned int gpu, memory;  // percent
};

template <typename Function>
void load(void* library, const char* name, Function*& function) {
  function = reinterpret_cast<Function*>(dlsym(library, name));
}

// GPU indices in CUDA_VISIBLE_DEVICES; all GPUs if unset or given as UUIDs.
std::vector<unsigned> visible_indices(unsigned count) {
  std::vector<unsigned> indices;
  if (const char* text = std::getenv("CUDA_VISIBLE_DEVICES")) {
    std::istringstream in(text);
    bool numbers = true;
    for (std::string item; std::getline(in, item, ',');) {
      numbers &= !item.empty() && item.find_first_not_of("0123456789") == std::string::npos;
      indices.push_back(static_cast<unsigned>(std::strtoul(item.c_str(), nullptr, 10)));
    }
    if (numbers) return indices;
    indices.clear();
  }
  for (unsigned i = 0; i < count; ++i) indices.push_back(i);
  return indices;
}

// Functions of the driver's library; null until found.
struct Nvml {
  void* library;
  int (*init)();
  int (*shutdown)();
  int (*device_count)(unsigned*);
  int (*device_by_index)(unsigned, Device*);
  int (*device_by_address)(const char*, Device*);
  int (*device_index)(Device, unsigned*);
  int (*device_name)(Device, char*, unsigned);
  int (*memory_info)(Device, Memory*);
  int (*utilization)(Device, Utilization*);
  int (*power)(Device, unsigned*);  // milliwatts
  int (*driver)(char*, unsigned);
  // Missing in older drivers.
  int (*clock)(Device, int kind, unsigned* mhz);
  int (*most_clock)(Device, int kind, unsigned* mhz);
  int (*nvlink_state)(Device, unsigned link, int* active);
  int (*p2p_status)(Device, Device, int capability, int* status);
  int (*common_ancestor)(Device, Device, int* level);
};

}  // namespace

struct GpuMonitor::Impl : Nvml {
  bool ready = false;
  std::vector<Device> devices;
  std::vector<Gpu> gpus;

  Impl() : Nvml{} {
    library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return;
    load(library, "nvmlInit_v2", init);
    load(library, "nvmlShutdown", shutdown);
    load(library, "nvmlDeviceGetCount_v2", device_count);
    load(library, "nvmlDeviceGetHandleByIndex_v2", device_by_index);
    load(library, "nvmlDeviceGetHandleByPciBusId_v2", device_by_address);
    load(library, "nvmlDeviceGetIndex", device_index);
    load(library, "nvmlDeviceGetName", device_name);
    load(library, "nvmlDeviceGetMemoryInfo", memory_info);
    load(library, "nvmlDeviceGetUtilizationRates", utilization);
    load(library, "nvmlDeviceGetPowerUsage", power);
    load(library, "nvmlSystemGetDriverVersion", driver);
    load(library, "nvmlDeviceGetClockInfo", clock);
    load(library, "nvmlDeviceGetMaxClockInfo", most_clock);
    load(library, "nvmlDeviceGetNvLinkState", nvlink_state);
    load(library, "nvmlDeviceGetP2PStatus", p2p_status);
    load(library, "nvmlDeviceGetTopologyCommonAncestor", common_ancestor);
    const bool complete = init && shutdown && device_count && device_by_index &&
                          device_by_address && device_index && device_name && memory_info &&
                          utilization && power && driver;
    ready = complete && init() == 0;
  }

  ~Impl() {
    if (ready) shutdown();
    if (library != nullptr) dlclose(library);
  }

  void add(Device device) {
    unsigned index = 0;
    char name[96] = "";
    device_index(device, &index);
    device_name(device, name, sizeof(name));
    devices.push_back(device);
    gpus.push_back({static_cast<int64_t>(index), name});
  }
};

GpuMonitor::GpuMonitor() : impl_(std::make_unique<Impl>()) {
  unsigned count = 0;
  if (!impl_->ready || impl_->device_count(&count) != 0) return;
  for (unsigned i : visible_indices(count)) {
    Device device = nullptr;
    if (i < count && impl_->device_by_index(i, &device) == 0) impl_->add(device);
  }
}

GpuMonitor::GpuMonitor(const std::vector<std::string>& pci_addresses)
    : impl_(std::make_unique<Impl>()) {
  for (const std::string& address : pci_addresses) {
    Device device = nullptr;
    if (impl_->ready && impl_->device_by_address(address.c_str(), &device) == 0) {
      impl_->add(device);
    }
  }
}

GpuMonitor::~GpuMonitor() = default;

const std::vector<GpuMonitor::Gpu>& GpuMonitor::gpus() const { return impl_->gpus; }

GpuMonitor::Reading GpuMonitor::read(size_t i) const {
  Reading reading;
  Memory memory{};
  if (impl_->memory_info(impl_->devices.at(i), &memory) == 0) {
    reading.memory_used_bytes = static_cast<int64_t>(memory.used);
  }
  Utilization utilization{};
  if (impl_->utilization(impl_->devices.at(i), &utilization) == 0) {
    reading.utilisation_ratio = utilization.gpu / 100.0;
  }
  unsigned milliwatts = 0;
  if (impl_->power(impl_->devices.at(i), &milliwatts) == 0) reading.power_w = milliwatts / 1e3;
  return reading;
}

GpuMonitor::Clocks GpuMonitor::clocks(size_t i) const {
  constexpr int kSm = 1;
  Clocks clocks;
  unsigned mhz = 0;
  const Device device = impl_->devices.at(i);
  if (impl_->clock != nullptr && impl_->clock(device, kSm, &mhz) == 0) clocks.sm_mhz = mhz;
  if (impl_->most_clock != nullptr && impl_->most_clock(device, kSm, &mhz) == 0) {
    clocks.most_mhz = mhz;
  }
  return clocks;
}

int GpuMonitor::nvlinks(size_t i) const {
  constexpr unsigned kMostLinks = 18;
  int count = 0;
  for (unsigned link = 0; impl_->nvlink_state != nullptr && link < kMostLinks; ++link) {
    int active = 0;
    if (impl_->nvlink_state(impl_->devices.at(i), link, &active) == 0) count += active;
  }
  return count;
}

std::string GpuMonitor::path_between(size_t i, size_t j) const {
  constexpr int kNvlink = 2, kWorks = 0;
  const Device a = impl_->devices.at(i), b = impl_->devices.at(j);
  int status = -1, level = -1;
  if (impl_->p2p_status != nullptr && impl_->p2p_status(a, b, kNvlink, &status) == 0 &&
      status == kWorks) {
    return "NVLink";
  }
  if (impl_->common_ancestor == nullptr || impl_->common_ancestor(a, b, &level) != 0) return "";
  return level == 0    ? "one board"
         : level <= 20 ? "PCIe switch"
         : level <= 30 ? "host bridge"
         : level <= 40 ? "NUMA node"
                       : "other NUMA nodes";
}

std::string GpuMonitor::driver_version() const {
  char version[96] = "";
  if (impl_->ready) impl_->driver(version, sizeof(version));
  return version;
}

}  // namespace tessera::metrics
