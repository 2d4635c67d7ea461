// SPDX-License-Identifier: MIT
#pragma once
// Benchmark of one configuration on one rank: build, warm-up, and one step per iteration.
#include <benchmark/benchmark.h>

#include <functional>
#include <string>
#include <vector>

#include "benchmarks/strategies/bench_options.h"
#include "benchmarks/strategies/planned_choices.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/backends/strategy.h"

namespace tessera::bench {

// Collective: every rank makes the same benchmarks and runs them in the same order.
class StepBenchmark {
 public:
  // ranks_on_host: ranks that share its memory.
  StepBenchmark(Communicator& world, int ranks_on_host, const Options& options,
                std::string strategy, int64_t micro_batch)
      : world_(world),
        ranks_on_host_(ranks_on_host),
        options_(options),
        strategy_name_(std::move(strategy)),
        micro_batch_(micro_batch) {}

  void run(benchmark::State& state);

 private:
  // Footprint of one rank; reported as the largest and the least over all ranks.
  struct Footprint {
    std::vector<int64_t> values() const;
    StrategyMemory held;
    int64_t peak_allocated = 0, peak_reserved = 0, sent = 0, device_allocations = 0;
    int64_t allocated = 0;  // bytes between steps
  };
  // Idle shares of a pipeline's ranks, in separate steps: measuring them costs a collective.
  struct Idle {
    bool measured = false;
    std::string blocks;            // by part
    double mean = 0, largest = 0;  // over ranks
    // of the schedule: with equal stages; with these parts' costs
    double bubble = 0, bubble_of_parts = 0;
  };
  Idle measure_idle(Strategy& strategy, const ModelSpec& model, const ParallelConfig& config,
                    const std::function<void()>& step) const;
  Footprint read_device() const;
  std::vector<int64_t> over_ranks(std::vector<int64_t> values, bool largest) const;
  programs::AvailableMemory least_available() const;  // on a host, one rank's share
  void synchronize() const;
  double median() const;
  double tokens_per_second_and_rank() const;
  double slowest_over_line() const;
  void print(const ModelSpec& model, const DeviceMesh& mesh, int64_t parameters,
             const Footprint& footprint, const Idle& idle) const;

  Communicator& world_;
  const int ranks_on_host_;
  const Options& options_;
  std::string strategy_name_;
  int64_t micro_batch_;
  std::vector<double> times_;
  std::vector<int64_t> tokens_;     // by step, without padding
  std::vector<int64_t> positions_;  // by step: this rank's positions, padding included
  int64_t mean_length_ = 0;
  double build_s_ = 0, loss_ = 0, optimizer_s_ = 0;
  OffloadReport offload_;
  PlannedChoices choices_;
};

}  // namespace tessera::bench
