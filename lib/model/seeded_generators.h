// SPDX-License-Identifier: MIT
#pragma once
// LibTorch's default generators at the start of a seed, for code that takes no generator.
#include <c10/core/Device.h>

#include <cstdint>
#include <mutex>
#include <optional>

#include "lib/core/turn.h"
#include "lib/ops/random.h"

namespace tessera {

// While it lives, the default generators of the CPU and of the device stand at the start of `seed`
// and the thread has them for itself among those that use this class: all ranks of a process share
// the CPU's, but for the time that the thread waits for other ranks. Afterwards they go on where
// they were. Waits for no device.
class SeededGenerators final : public Turn {
 public:
  SeededGenerators(at::Device device, uint64_t seed);
  ~SeededGenerators() override;
  SeededGenerators(const SeededGenerators&) = delete;
  SeededGenerators& operator=(const SeededGenerators&) = delete;

  void give_up() override;
  void take_back() override;

 private:
  std::unique_lock<std::mutex> turn_;
  const uint64_t seed_;
  std::optional<ops::SeededDevice> cpu_, device_;
  at::Tensor left_at_;  // the CPU's state, while given up
};

}  // namespace tessera
