// SPDX-License-Identifier: MIT
// Time, algbw and busbw of the collectives by size:
//   bench_collectives --ranks 4                       threads of this process
//   mpirun -n 4 bench_collectives --backend mpi       or nccl; rank 0 reports
// Google Benchmark's own flags work too, such as --benchmark_filter=all_reduce and
// --benchmark_out=FILE.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <iostream>

#include "benchmarks/collectives/collectives.h"
#include "benchmarks/start.h"
#include "tessera/comm/launch.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

// Large tensors need few repeats for a steady mean, small ones many.
int repeats_for(int64_t bytes) { return bytes <= (1 << 20) ? 50 : bytes <= (64 << 20) ? 10 : 5; }

void register_benchmarks(Communicator& comm, ControlChannel& control) {
  const int64_t largest = comm.device().is_cpu() ? int64_t{16} << 20 : int64_t{1} << 30;
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter,
        Collective::kAllToAll, Collective::kBroadcast, Collective::kSendRecv}) {
    if (collective == Collective::kSendRecv && comm.size() == 1) continue;
    const std::string name = concat(collective_name(collective), "/", comm.transport(),
                                    "/ranks:", comm.size(), "/bytes");
    benchmark::RegisterBenchmark(
        name.c_str(),
        [&comm, &control, collective](benchmark::State& state) {
          const Measurement what{collective, state.range(0), repeats_for(state.range(0))};
          double seconds = 0;
          for (auto _ : state) {
            control.exchange(what.pack());
            seconds = measure(comm, control, what);
            state.SetIterationTime(seconds);
          }
          const double algbw = static_cast<double>(what.bytes) / seconds / 1e9;
          state.counters["algbw_GB_per_s"] = algbw;
          state.counters["busbw_GB_per_s"] = algbw * bus_factor(collective, comm.size());
        })
        ->RangeMultiplier(8)
        ->Range(4 << 10, largest)
        ->Iterations(1)
        ->UseManualTime()
        ->Unit(benchmark::kMicrosecond);
  }
}

// Runs Google Benchmark on rank 0, which directs the others.
void lead(Communicator& comm, ControlChannel& control, const std::string& launcher) {
  benchmark::AddCustomContext("transport", comm.transport());
  benchmark::AddCustomContext("ranks", std::to_string(comm.size()));
  benchmark::AddCustomContext("launcher", launcher);
  benchmark::AddCustomContext("device", device_name(comm.device()));
  register_benchmarks(comm, control);
  benchmark::RunSpecifiedBenchmarks();
  control.exchange(Measurement{}.pack());
}

void follow(Communicator& comm, ControlChannel& control) {
  while (true) {
    const Measurement what = Measurement::unpack(control.exchange("").front());
    if (what.repeats == 0) return;
    measure(comm, control, what);
  }
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  const std::string usage =
      "usage: bench_collectives [--ranks N] [--backend auto|local|mpi|nccl] [--benchmark_...]\n";
  bench::start(&argc, argv, usage);
  JobOptions options;
  for (int i = 1; i < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--ranks" && i + 1 < argc) {
      options.ranks = std::atoi(argv[i + 1]);
    } else if (flag == "--backend" && i + 1 < argc) {
      options.transport = argv[i + 1];
    } else {
      std::cerr << "unknown flag or missing value: " << flag << "\n" << usage;
      return exit_code(ErrorCode::kInvalidArgument);
    }
  }
  return run_job(options,
                 [](Communicator& world, const LaunchInfo& launch, ControlChannel& control) {
                   world.rank() == 0 ? bench::lead(world, control, launch.launcher)
                                     : bench::follow(world, control);
                 });
}
