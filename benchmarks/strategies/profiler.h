// SPDX-License-Identifier: MIT
#pragma once
// LibTorch's profiler (Kineto): kernels of a GPU, or operators of the CPU.
#include <c10/core/Device.h>

#include <cstdint>
#include <string>
#include <vector>

#include "benchmarks/strategies/kernel_table.h"

namespace tessera::bench {

// An operator of the host, or the GPU's activity for one.
struct ProfiledEvent {
  std::string name;
  bool on_gpu = false;
  uint64_t begin_ns = 0, end_ns = 0;
  uint64_t thread = 0;
  uint64_t id = 0;      // for an operator
  uint64_t issuer = 0;  // for GPU activity: the innermost operator around its launch; 0: none
  double flops = 0;     // for an operator that is a matrix product, as LibTorch counts
};

struct Calls {
  std::vector<KernelCall> calls;
  double covered_s = 0;  // time with at least one running
};

// Calls from events. on_gpu: the GPU's events, with the operation and work of the launching range.
// A range's work goes to its one kernel, matrix products to the longest of several. Otherwise
// operators without callees; tessera's own code has its range's work.
Calls calls_of(std::vector<ProfiledEvent> events, bool on_gpu);

// Profiler that records from construction to stop(), on its thread and in that thread's backward
// passes. At most one per process.
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
