// SPDX-License-Identifier: MIT
#pragma once
// How fast a host moves bytes, in a few seconds.
#include <string>
#include <vector>

namespace tessera::programs {

struct Bandwidth {
  std::string what;
  double bytes_per_s = 0;  // the best of several
};

// Host memory (triad: a = b + s * c, by all cores), the device's own memory, host to device and
// back with pinned memory, GPU to GPU, and writing a file durably into `directory` ("": not). Each
// takes about `seconds` at most.
std::vector<Bandwidth> measure_bandwidths(const std::string& directory, double seconds);

}  // namespace tessera::programs
