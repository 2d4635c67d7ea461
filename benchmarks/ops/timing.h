// SPDX-License-Identifier: MIT
#pragma once
// Timing in device time, or wall time on the CPU.
#include <c10/core/Device.h>

#include <functional>

namespace tessera::benchmarks {

bool has_device(c10::Device device);
// Seconds of one call of function, from the first kernel's start to the last one's end.
double seconds(c10::Device device, const std::function<void()>& function);

// main() of a benchmark: runs everything that `register_all` adds.
int run_benchmarks(int argc, char** argv, const std::function<void()>& register_all);

}  // namespace tessera::benchmarks
