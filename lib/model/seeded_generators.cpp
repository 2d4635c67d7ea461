#include "lib/model/seeded_generators.h"

namespace tessera {
namespace {

std::mutex& one_at_a_time() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

SeededGenerators::SeededGenerators(at::Device device, uint64_t seed)
    : turn_(one_at_a_time()), cpu_(at::kCPU, seed) {
  if (!device.is_cpu() && !device.is_meta()) device_.emplace(device, seed);
}

}  // namespace tessera
