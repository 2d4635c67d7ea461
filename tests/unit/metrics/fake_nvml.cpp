// SPDX-License-Identifier: MIT
// A fake driver with three GPUs whose indices differ from their order, for tests of GpuMonitor.
#include <cstdio>
#include <cstring>

namespace {

struct Gpu {
  const char* address;
  unsigned index;
};
Gpu gpus[] = {{"0000:1a:00.0", 0}, {"0000:3b:00.0", 1}, {"0000:9d:00.0", 2}};

unsigned index_of(void* device) { return static_cast<Gpu*>(device)->index; }

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  if (index >= 3) return 2;
  *device = &gpus[index];
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* address, void** device) {
  for (Gpu& gpu : gpus) {
    if (std::strcmp(gpu.address, address) != 0) continue;
    *device = &gpu;
    return 0;
  }
  return 6;
}
int nvmlDeviceGetIndex(void* device, unsigned* index) {
  *index = index_of(device);
  return 0;
}
int nvmlDeviceGetName(void* device, char* name, unsigned length) {
  std::snprintf(name, length, "Fake %u", index_of(device));
  return 0;
}
int nvmlDeviceGetMemoryInfo(void* device, unsigned long long* total_free_used) {
  total_free_used[0] = 100000;
  total_free_used[2] = 1000 * (index_of(device) + 1);
  total_free_used[1] = total_free_used[0] - total_free_used[2];
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* device, unsigned* gpu_memory) {
  gpu_memory[0] = 10 * (index_of(device) + 1);
  gpu_memory[1] = 0;
  return 0;
}
int nvmlDeviceGetPowerUsage(void*, unsigned* milliwatts) {
  *milliwatts = 300000;
  return 0;
}
int nvmlSystemGetDriverVersion(char* version, unsigned length) {
  std::snprintf(version, length, "1.2.3");
  return 0;
}

}  // extern "C"
