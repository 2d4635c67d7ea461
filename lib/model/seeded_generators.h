#pragma once
// LibTorch's default generators at the start of a seed, for code that takes no generator.
#include <c10/core/Device.h>

#include <cstdint>
#include <mutex>
#include <optional>

#include "lib/ops/random.h"

namespace tessera {

// While it lives, the default generators of the CPU and of the device stand at the start of `seed`
// and the thread has them for itself among those that use this class: all ranks of a process share
// the CPU's. Afterwards they go on where they were. Waits for no device.
class SeededGenerators {
 public:
  SeededGenerators(at::Device device, uint64_t seed);

 private:
  std::unique_lock<std::mutex> turn_;
  ops::SeededDevice cpu_;
  std::optional<ops::SeededDevice> device_;
};

}  // namespace tessera
