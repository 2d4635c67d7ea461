// SPDX-License-Identifier: MIT
// Host time of a step on one rank of many, by strategy and number of ranks, with a model without
// work and a transport that only waits:
//   bench_host_cost [--blocks 24] [--wait_us 0] [--coalesce_bytes 0]
// Rows: microseconds per step. Counters: CPU time of the thread in forward and backward, and in the
// update, arithmetic included; collectives launched, a group counting once; ATen operations (--list
// true names them) and heap allocations of forward and backward. Google Benchmark's own flags work
// too.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/record_function.h>
#include <benchmark/benchmark.h>
#include <time.h>

#include <charconv>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <latch>
#include <map>
#include <memory>
#include <new>
#include <string>

#include "benchmarks/host_cost/host_model.h"
#include "benchmarks/host_cost/waiting_communicator.h"
#include "benchmarks/start.h"
#include "tessera/backends/parallel_config.h"
#include "tessera/comm/device_mesh.h"
#include "tessera/comm/local.h"
#include "tessera/core/error.h"
#include "tessera/optim/sgd.h"

namespace {

thread_local int64_t allocations = 0;

}  // namespace

// NOLINTBEGIN: counts heap allocations of the process
void* operator new(size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size == 0 ? 1 : size)) return memory;
  throw std::bad_alloc();
}
// AddressSanitizer's own version does not call the one above.
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  ++allocations;
  return std::malloc(size == 0 ? 1 : size);
}
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }
// NOLINTEND

namespace tessera::bench {
namespace {

// CPU time of this thread: excludes other work of the host, includes busy waiting.
double cpu_s() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

struct Options {
  int blocks = 24;
  double wait_us = 0;
  int64_t coalesce_bytes = 0;
  bool list = false;  // list ATen's operations by name
};

std::map<std::string, int64_t>& operations() {
  thread_local std::map<std::string, int64_t> counted;
  return counted;
}

std::unique_ptr<at::ObserverContext> count(const at::RecordFunction& called) {
  ++operations()[called.name()];
  return nullptr;
}

// Releases the other ranks, which wait while the first one is measured.
class End {
 public:
  explicit End(std::latch& latch) : latch_(latch) {}
  ~End() { latch_.count_down(); }

 private:
  std::latch& latch_;
};

class Steps {
 public:
  Steps(Communicator& world, int ranks, const std::string& strategy, const Options& options)
      : mesh_(world, {.data = ranks}),
        strategy_(make_strategy(config_of(strategy, options), mesh_)) {
    strategy_->attach(model_without_work(options.blocks), {}, make_sgd({}));
    batch_.input_ids = at::ones({1, 4}, at::kLong);
    batch_.target_count = 4;
  }
  void pass() { strategy_->forward_backward({&batch_, 1}); }
  void update() { strategy_->optimizer_step(0.1); }
  void run() {
    pass();
    update();
  }

 private:
  // Small vectors and large matrices, as in a large model.
  static ParallelConfig config_of(const std::string& strategy, const Options& options) {
    ParallelConfig config{.strategy = strategy, .bucket_bytes = 1};
    config.persistence_threshold = 40;
    config.coalesce_bytes = options.coalesce_bytes;
    return config;
  }

  DeviceMesh mesh_;
  std::unique_ptr<Strategy> strategy_;
  MicroBatch batch_;
};

void report_step(benchmark::State& state, Steps& steps, Waiting& waiting, const Options& options) {
  waiting.launches = 0;
  const int64_t before = allocations;
  steps.pass();
  const int64_t allocated = allocations - before, of_pass = waiting.launches;
  steps.update();
  const int64_t of_update = waiting.launches - of_pass;
  operations().clear();
  const auto handle = at::addThreadLocalCallback(
      at::RecordFunctionCallback(count).scopes({at::RecordScope::FUNCTION}));
  steps.pass();
  at::removeCallback(handle);
  steps.update();
  int64_t called = 0;
  for (const auto& [name, times] : operations()) {
    called += times;
    if (options.list) std::cerr << name << " " << times << "\n";
  }
  state.counters["pass_launches"] = static_cast<double>(of_pass);
  state.counters["update_launches"] = static_cast<double>(of_update);
  state.counters["aten"] = static_cast<double>(called);
  state.counters["allocations"] = static_cast<double>(allocated);
}

void measure(benchmark::State& state, const std::string& strategy, int ranks,
             const Options& options) {
  std::latch measured(1);
  run_local_ranks(ranks, [&](Communicator& local) {
    const auto waiting = std::make_shared<Waiting>();
    WaitingCommunicator world(local, waiting);
    Steps steps(world, ranks, strategy, options);
    for (int step = 0; step < 2; ++step) steps.run();
    world.barrier();
    waiting->microseconds = options.wait_us;
    waiting->alone = true;
    if (local.rank() > 0) return measured.wait();
    const End end(measured);
    for (int step = 0; step < 20; ++step) steps.run();
    double pass_s = 0, update_s = 0;
    for (auto _ : state) {
      const double begin = cpu_s();
      steps.pass();
      const double middle = cpu_s();
      steps.update();
      pass_s += middle - begin;
      update_s += cpu_s() - middle;
    }
    const auto mean_us = [](double seconds) {
      return benchmark::Counter(seconds * 1e6, benchmark::Counter::kAvgIterations);
    };
    state.counters["pass_us"] = mean_us(pass_s);
    state.counters["update_us"] = mean_us(update_s);
    report_step(state, steps, *waiting, options);
  });
}

// Whether the text is a number of at least this.
template <typename T>
bool read(const std::string& text, T least, T& value) {
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, value);
  return read.ec == std::errc() && read.ptr == end && value >= least;
}

void add_rows(const Options& options) {
  for (const std::string strategy : {"single", "ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    for (const int ranks : {1, 2, 4, 8, 64}) {
      if ((strategy == "single") != (ranks == 1)) continue;
      benchmark::RegisterBenchmark(
          concat(strategy, "/ranks:", ranks).c_str(),
          [=](benchmark::State& state) { measure(state, strategy, ranks, options); })
          ->Unit(benchmark::kMicrosecond)
          ->MinTime(0.3);
    }
  }
}

}  // namespace
}  // namespace tessera::bench

int main(int argc, char** argv) {
  using namespace tessera;
  at::set_num_threads(1);
  const std::string usage =
      "usage: bench_host_cost [--blocks N] [--wait_us N] [--coalesce_bytes N] [--list true] "
      "[--benchmark_...]\n";
  bench::start(&argc, argv, usage);
  bench::Options options;
  const std::map<std::string, std::function<bool(const std::string&)>> flags{
      {"--blocks", [&](const auto& value) { return bench::read(value, 1, options.blocks); }},
      {"--wait_us", [&](const auto& value) { return bench::read(value, 0.0, options.wait_us); }},
      {"--coalesce_bytes",
       [&](const auto& value) { return bench::read(value, int64_t{0}, options.coalesce_bytes); }},
      {"--list", [&](const auto& value) { return options.list = value == "true"; }}};
  for (int i = 1; i < argc; i += 2) {
    const auto flag = flags.find(argv[i]);
    if (flag != flags.end() && i + 1 < argc && flag->second(argv[i + 1])) continue;
    std::cerr << "bench_host_cost: unknown flag, or no value that it takes: " << argv[i] << "\n"
              << usage;
    return exit_code(ErrorCode::kInvalidArgument);
  }
  bench::add_rows(options);
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}
