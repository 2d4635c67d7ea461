// SPDX-License-Identifier: MIT
#pragma once
// Seconds of device time, or of wall time on the CPU.
#include <c10/core/Device.h>

#include <functional>

namespace tessera::benchmarks {

bool has_device(c10::Device device);
// One call of function, from the first kernel's start to the last one's end.
double seconds(c10::Device device, const std::function<void()>& function);

// A benchmark's main(): what `register_all` adds is run.
int run_benchmarks(int argc, char** argv, const std::function<void()>& register_all);

}  // namespace tessera::benchmarks
