// SPDX-License-Identifier: MIT
// Saving and loading of checkpoints, compared with the disk's own rates:
#include <benchmark/benchmark.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <functional>
#include <iostream>

#include "benchmarks/checkpoint/work.h"
#include "benchmarks/start.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

void add(const Work& work, const char* name, const std::function<Seconds()>& measure) {
  benchmark::RegisterBenchmark(name,
                               [&work, measure](benchmark::State& state) {
                                 Seconds seconds;
                                 for (auto _ : state) {
                                   seconds = measure();
                                   state.SetIterationTime(seconds.whole);
                                 }
                                 state.counters["GB_per_s"] =
                                     static_cast<double>(work.bytes) / seconds.whole / 1e9;
                                 state.counters["stall_s"] = seconds.stall;
                               })
      ->UseManualTime()
      ->Iterations(1)
      ->Unit(benchmark::kSecond);
}

void register_all(const Work& work) {
  add(work, "disk/write_fsync", [&] { return write_plainly(work); });
  add(work, "disk/read_cold", [&] { return read_plainly(work); });
  add(work, "save/synchronous", [&] { return save(work, false); });
  add(work, "save/asynchronous", [&] { return save(work, true); });
  add(work, "load/cold", [&] { return load(work, true, work.ranks); });
  add(work, "load/cached", [&] { return load(work, false, work.ranks); });
  add(work, "load/cached_one_rank_more", [&] { return load(work, false, work.ranks + 1); });
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  const std::string usage =
      "usage: bench_checkpoint [--directory DIR] [--mebibytes N] [--ranks N] [--device cpu|cuda] "
      "[--benchmark_...]\n";
  bench::start(&argc, argv, usage);
  bench::Work work{.directory = std::filesystem::temp_directory_path()};
  try {
    for (int i = 1; i < argc; i += 2) {
      const std::string flag = argv[i];
      check(i + 1 < argc, ErrorCode::kInvalidArgument, flag, " needs a value");
      if (flag == "--directory") {
        work.directory = argv[i + 1];
      } else if (flag == "--mebibytes") {
        work.bytes = std::atoll(argv[i + 1]) << 20;
      } else if (flag == "--ranks") {
        work.ranks = std::atoi(argv[i + 1]);
      } else if (flag == "--device") {
        work.device = at::Device(argv[i + 1]);
      } else {
        fail(ErrorCode::kInvalidArgument, "unknown flag ", flag, "\n", usage);
      }
    }
    check(work.bytes > 0 && work.ranks > 0, ErrorCode::kInvalidArgument,
          "--mebibytes and --ranks must be at least 1");
    work.directory += concat("/tessera-bench-checkpoint-", getpid());
    std::filesystem::create_directories(work.directory);
    benchmark::AddCustomContext("device", device_name(work.device));
    benchmark::AddCustomContext("ranks", std::to_string(work.ranks));
    benchmark::AddCustomContext("bytes", std::to_string(work.bytes));
    bench::register_all(work);
    benchmark::RunSpecifiedBenchmarks();
    std::filesystem::remove_all(work.directory);
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return exit_code(error.code());
  }
}
