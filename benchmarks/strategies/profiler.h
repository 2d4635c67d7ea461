// SPDX-License-Identifier: MIT
#pragma once
// LibTorch's profiler (Kineto): the kernels that a GPU ran, or the operators of the CPU.
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/strategies/kernel_table.h"

namespace tessera::bench {

// An operator of the host, or what the GPU did for one.
struct ProfiledEvent {
  std::string name;
  bool on_gpu = false;
  uint64_t begin_ns = 0, end_ns = 0;
  uint64_t thread = 0;
  uint64_t id = 0;      // of an operator
  uint64_t issuer = 0;  // of what the GPU did: the innermost operator around its launch; 0: none
  double flops = 0;     // of an operator that is a matrix product, as LibTorch counts
};

struct Calls {
  std::vector<KernelCall> calls;
  double covered_s = 0;  // in which at least one was under way
};

// on_gpu: the GPU's events, with the operation and the work of the range that launched them. The
// work of a range is that of its one kernel; matrix products run in the longest of several. Else
// operators without those that they call; our own code has the work of its range.
Calls calls_of(std::vector<ProfiledEvent> events, bool on_gpu);

// Records from construction to stop(), on the thread that made it and in backward passes that it
// runs. One in a process at a time.
class Profiler {
 public:
  explicit Profiler(at::Device device);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  std::vector<ProfiledEvent> stop();

 private:
  bool running_ = true;
};

}  // namespace tessera::bench
