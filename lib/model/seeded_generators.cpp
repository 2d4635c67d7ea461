// SPDX-License-Identifier: MIT
#include "lib/model/seeded_generators.h"

#include <ATen/CPUGeneratorImpl.h>

namespace tessera {
namespace {

std::mutex& one_at_a_time() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

SeededGenerators::SeededGenerators(at::Device device, uint64_t seed)
    : turn_(one_at_a_time()), seed_(seed) {
  cpu_.emplace(at::kCPU, seed);
  if (!device.is_cpu() && !device.is_meta()) device_.emplace(device, seed);
  of_this_thread() = this;
}

SeededGenerators::~SeededGenerators() { of_this_thread() = nullptr; }

void SeededGenerators::give_up() {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  {
    const std::scoped_lock lock(generator.mutex());
    left_at_ = generator.get_state();
  }
  cpu_.reset();
  turn_.unlock();
}

void SeededGenerators::take_back() {
  turn_.lock();
  cpu_.emplace(at::kCPU, seed_);
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  const std::scoped_lock lock(generator.mutex());
  generator.set_state(left_at_);
}

}  // namespace tessera
