// NVML through dlopen, so that neither builds nor hosts need it. Declarations follow the NVML API
// reference.
#include <dlfcn.h>

#include <cstdlib>
#include <sstream>

#include "tessera/metrics/resource_sampler.h"

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

// The GPU indices that CUDA_VISIBLE_DEVICES names; all of them when it is unset or names GPUs by
// UUID.
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

}  // namespace

struct GpuMonitor::Impl {
  void* library = nullptr;
  int (*init)() = nullptr;
  int (*shutdown)() = nullptr;
  int (*device_count)(unsigned*) = nullptr;
  int (*device_by_index)(unsigned, Device*) = nullptr;
  int (*device_name)(Device, char*, unsigned) = nullptr;
  int (*memory_info)(Device, Memory*) = nullptr;
  int (*utilization)(Device, Utilization*) = nullptr;
  int (*power)(Device, unsigned*) = nullptr;  // milliwatts
  int (*driver)(char*, unsigned) = nullptr;
  bool ready = false;
  std::vector<Device> devices;
  std::vector<Gpu> gpus;

  Impl() {
    library = dlopen("libnvidia-ml.so.1", RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) return;
    load(library, "nvmlInit_v2", init);
    load(library, "nvmlShutdown", shutdown);
    load(library, "nvmlDeviceGetCount_v2", device_count);
    load(library, "nvmlDeviceGetHandleByIndex_v2", device_by_index);
    load(library, "nvmlDeviceGetName", device_name);
    load(library, "nvmlDeviceGetMemoryInfo", memory_info);
    load(library, "nvmlDeviceGetUtilizationRates", utilization);
    load(library, "nvmlDeviceGetPowerUsage", power);
    load(library, "nvmlSystemGetDriverVersion", driver);
    const bool complete = init && shutdown && device_count && device_by_index && device_name &&
                          memory_info && utilization && power && driver;
    ready = complete && init() == 0;
    if (ready) find_devices();
  }

  ~Impl() {
    if (ready) shutdown();
    if (library != nullptr) dlclose(library);
  }

  void find_devices() {
    unsigned count = 0;
    if (device_count(&count) != 0) return;
    for (unsigned i : visible_indices(count)) {
      Device device = nullptr;
      char name[96] = "";
      if (i >= count || device_by_index(i, &device) != 0) continue;
      device_name(device, name, sizeof(name));
      devices.push_back(device);
      gpus.push_back({static_cast<int64_t>(i), name});
    }
  }
};

GpuMonitor::GpuMonitor() : impl_(std::make_unique<Impl>()) {}
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

std::string GpuMonitor::driver_version() const {
  char version[96] = "";
  if (impl_->ready) impl_->driver(version, sizeof(version));
  return version;
}

}  // namespace tessera::metrics
