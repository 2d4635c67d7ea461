// SPDX-License-Identifier: MIT
#pragma once
// Google Benchmark with processes as ranks: all run the same rows, rank 0 reports.
#include <benchmark/benchmark.h>

#include <exception>
#include <functional>
#include <string>

#include "tessera/comm/communicator.h"

namespace tessera::bench {

// Reporter of every rank but the first, which prints nothing.
class SilentReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override { return true; }
  void ReportRuns(const std::vector<Run>&) override {}
};

// Rows of a benchmark. An exception in a row ends all rows and is rethrown by run(): Google
// Benchmark would end the process without the other ranks.
class RankBenchmarks {
 public:
  void add(const std::string& name, int64_t iterations,
           const std::function<void(benchmark::State&)>& measure) {
    benchmark::RegisterBenchmark(name.c_str(),
                                 [this, measure](benchmark::State& state) {
                                   try {
                                     if (!problem_) measure(state);
                                   } catch (...) {
                                     problem_ = std::current_exception();
                                   }
                                   if (problem_) state.SkipWithError("failed");
                                 })
        ->Iterations(iterations)
        ->UseManualTime()
        ->Unit(benchmark::kMillisecond);
  }
  void run(const Communicator& world) {
    SilentReporter silent;
    if (world.rank() == 0) {
      benchmark::RunSpecifiedBenchmarks();
    } else {
      benchmark::RunSpecifiedBenchmarks(&silent);
    }
    benchmark::ClearRegisteredBenchmarks();
    if (problem_) std::rethrow_exception(problem_);
  }

 private:
  std::exception_ptr problem_;
};

}  // namespace tessera::bench
