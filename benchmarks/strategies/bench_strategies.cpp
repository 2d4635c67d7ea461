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

#include <iostream>

#include "benchmarks/strategies/step_benchmark.h"
#include "lib/settings/lists.h"
#include "tessera/comm/launch.h"
#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

// Keeps every rank but the first silent.
class SilentReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

void run_rank(Communicator& world, const Options& options) {
  std::vector<std::unique_ptr<StepBenchmark>> benchmarks;
  std::exception_ptr problem;  // Google Benchmark would end the process without the other ranks
  for (const auto& strategy : programs::items_of(options.strategies)) {
    for (const auto& micro_batch : programs::items_of(options.micro_batches)) {
      benchmarks.push_back(
          std::make_unique<StepBenchmark>(world, options, strategy, std::stoll(micro_batch)));
      StepBenchmark* self = benchmarks.back().get();
      const std::string name = concat(options.run.model_config, "/", strategy, "/mb", micro_batch,
                                      "/ranks", world.size());
      const auto run = [self, &problem](benchmark::State& state) {
        try {
          if (!problem) self->run(state);
        } catch (...) {
          problem = std::current_exception();
        }
        if (problem) state.SkipWithError("failed");
      };
      benchmark::RegisterBenchmark(name.c_str(), run)
          ->Iterations(options.run.max_steps)
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
  if (world.rank() == 0) {
    benchmark::RunSpecifiedBenchmarks();
  } else {
    SilentReporter silent;
    benchmark::RunSpecifiedBenchmarks(&silent);
  }
  benchmark::ClearRegisteredBenchmarks();
  if (problem) std::rethrow_exception(problem);
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
  return run_job({.transport = options.run.backend},
                 [&](Communicator& world, const LaunchInfo&, ControlChannel&) {
                   bench::run_rank(world, options);
                 });
}
