// SPDX-License-Identifier: MIT
// The host's AdamW, alternating with a triad (a = b + s c, streaming stores) on the same threads.
// Bytes are the necessary traffic: 12 per element for the triad; 24 plus gradient and 16-bit copy
// for AdamW. of_triad is the ratio of both rates, from medians.
//   bench_host_adamw --benchmark_filter=threads:16
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/ops/timing.h"
#include "benchmarks/ops/triad.h"
#include "lib/ops/update.h"

namespace tessera::benchmarks {
namespace {

constexpr int64_t kNumel = 1 << 26;

void parallel_triad(const at::Tensor& a, const at::Tensor& b, const at::Tensor& c) {
  constexpr int64_t kChunk = 1 << 15;
  at::parallel_for(0, kNumel / kChunk, 1, [&](int64_t begin, int64_t end) {
    const int64_t first = begin * kChunk;
    triad(a.data_ptr<float>() + first, b.const_data_ptr<float>() + first,
          c.const_data_ptr<float>() + first, (end - begin) * kChunk);
  });
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void run(benchmark::State& state, int threads, at::ScalarType dtype) {
  at::set_num_threads(threads);
  const at::Tensor a = at::zeros({kNumel}), b = at::zeros({kNumel}), c = at::zeros({kNumel});
  const at::Tensor low = dtype == at::kFloat ? at::Tensor() : at::zeros({kNumel}, dtype);
  const ops::AdamWRange range{a, at::zeros({kNumel}, dtype), b, c, low, 0.1};
  const ops::AdamWScalars scalars{.learning_rate = at::full({}, 1e-3F),
                                  .step_count = at::full({}, 2.0F)};
  std::vector<double> triads, updates;
  for (auto _ : state) {
    triads.push_back(seconds(at::kCPU, [&] { parallel_triad(a, b, c); }));
    updates.push_back(seconds(at::kCPU, [&] { ops::adamw_update({&range, 1}, {}, scalars); }));
    state.SetIterationTime(updates.back());
  }
  const double written = dtype == at::kFloat ? 0 : 2, read = dtype == at::kFloat ? 4 : 2;
  const double triad_rate = 12.0 * kNumel / median(triads);
  const double rate = (24 + read + written) * kNumel / median(updates);
  state.counters["adamw_GB_s"] = rate / 1e9;
  state.counters["triad_GB_s"] = triad_rate / 1e9;
  state.counters["of_triad"] = rate / triad_rate;
}

void register_all() {
  const int most = static_cast<int>(std::thread::hardware_concurrency());
  for (const auto& [name, dtype] : {std::pair("bf16", at::kBFloat16), {"fp32", at::kFloat}}) {
    for (int threads = 1; threads <= most; threads *= 2) {
      benchmark::RegisterBenchmark(
          (std::string("host_adamw/") + name + "/threads:" + std::to_string(threads)).c_str(),
          [=, dtype = dtype](benchmark::State& state) { run(state, threads, dtype); })
          ->UseManualTime()
          ->Unit(benchmark::kMillisecond);
    }
  }
}

}  // namespace
}  // namespace tessera::benchmarks

int main(int argc, char** argv) {
  return tessera::benchmarks::run_benchmarks(argc, argv, &tessera::benchmarks::register_all);
}
