// SPDX-License-Identifier: MIT
#include "benchmarks/ops/timing.h"

#include <ATen/Context.h>
#include <benchmark/benchmark.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <chrono>

namespace tessera::benchmarks {

bool has_device(c10::Device device) { return device.is_cpu() || at::hasCUDA(); }

double seconds(c10::Device device, const std::function<void()>& function) {
  if (device.is_cpu()) {
    const auto start = std::chrono::steady_clock::now();
    function();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  }
  const c10::impl::VirtualGuardImpl guard(device.type());
  c10::Event start(device.type(), c10::EventFlag::BACKEND_DEFAULT),
      stop(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  const c10::Stream stream = guard.getStream(device);
  function();  // keeps the device busy until the timed work is enqueued
  start.record(stream);
  function();
  stop.record(stream);
  stop.synchronize();
  return start.elapsedTime(stop) / 1e3;
}

int run_benchmarks(int argc, char** argv, const std::function<void()>& register_all) {
  benchmark::Initialize(&argc, argv);  // it keeps argv[0]
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  register_all();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace tessera::benchmarks
