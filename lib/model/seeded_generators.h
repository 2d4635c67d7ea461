// SPDX-License-Identifier: MIT
#pragma once
// LibTorch's default generators with a given seed, for code that takes no generator.
#include <c10/core/Device.h>

#include <cstdint>
#include <mutex>
#include <optional>

#include "lib/core/thread_lease.h"
#include "lib/ops/random.h"

namespace tessera {

// Scope in which the default generators of the CPU and the device are seeded with `seed`. Excludes
// other threads that use this class, as in-process ranks share the CPU's generator, except while
// this thread waits for other ranks. Restores the generators at its end. Does not synchronise with
// the device.
class SeededGenerators final : public ThreadLease {
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
  at::Tensor left_at_;  // the CPU's state, while released
};

}  // namespace tessera
