// SPDX-License-Identifier: MIT
// Step time and memory of every strategy on random token ids, in rows of one length or of many
// (--rows padded, left or packed, --supervise answer). One Google Benchmark row a
// configuration and one JSON line with the keys that the rivals' scripts print, so that lines can
// be joined:
//   mpirun -n 4 bench_strategies --model_config bloom-560m --strategy zero1,zero2
//     --per_device_train_batch_size 4,16 --max_seq_length 512 --dtype bf16 --max_steps 20
//   mpirun -n 4 bench_strategies --model_config bloom-560m --strategy ddp
//     --pipeline_parallel 4 --gradient_accumulation_steps 16 --per_device_train_batch_size 4
//     --max_seq_length 512 --dtype bf16
// Every rank is a process (Google Benchmark's registry is one a process) and runs the same number
// of iterations; rank 0 reports.
#include <ATen/ATen.h>
#include <ATen/DeviceAccelerator.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <iostream>

#include "benchmarks/rank_benchmarks.h"
#include "benchmarks/strategies/step_benchmark.h"
#include "lib/settings/lists.h"
#include "tessera/comm/launch.h"
#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

// mpirun gives ranks terminals: colour codes would precede the JSON lines.
void without_colours(char* program) {
  static char flag[] = "--benchmark_color=false";
  static char* arguments[] = {program, flag, nullptr};  // Google Benchmark keeps the first
  int count = 2;
  benchmark::Initialize(&count, arguments);
}

void run_rank(Communicator& world, const LaunchInfo& launch, const Options& options) {
  RankBenchmarks benchmarks;
  for (const auto& strategy : programs::items_of(options.strategies)) {
    for (const auto& micro_batch : programs::items_of(options.micro_batches)) {
      const auto step = std::make_shared<StepBenchmark>(world, std::max(1, launch.local_size),
                                                        options, strategy, std::stoll(micro_batch));
      const std::string name = concat(options.run.model.config, "/", strategy, "/mb", micro_batch,
                                      "/ranks", world.size());
      benchmarks.add(name, options.run.training.max_steps,
                     [step](benchmark::State& state) { step->run(state); });
    }
  }
  benchmarks.run(world);
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  bench::Options options;
  try {
    options = bench::parse_options({argv + 1, argv + argc});
  } catch (const Error& error) {
    std::cerr << error.what() << "\n";
    return exit_code(error.code());
  }
  if (!options.help.empty()) {
    std::cout << options.help;
    return 0;
  }
  bench::without_colours(argv[0]);
  return run_job({.transport = options.run.run.backend},
                 [&](Communicator& world, const LaunchInfo& launch, ControlChannel&) {
                   bench::run_rank(world, launch, options);
                 });
}
