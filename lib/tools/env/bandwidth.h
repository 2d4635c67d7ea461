// SPDX-License-Identifier: MIT
#pragma once
// Bandwidths of a host, measured in a few seconds.
#include <string>
#include <vector>

namespace tessera::programs {

struct Bandwidth {
  std::string what;
  double bytes_per_s = 0;  // the best of several
};

// Host memory (triad: a = b + s * c on all cores), device memory, host to device and back with
// pinned memory, GPU to GPU, and durable writes into `directory` ("": skipped). Each takes at most
// about `seconds`.
std::vector<Bandwidth> measure_bandwidths(const std::string& directory, double seconds);

}  // namespace tessera::programs
