// SPDX-License-Identifier: MIT
// The host's AdamW, alternating with a triad (a = b + s c, streaming stores) on the same threads.
// Bytes are the necessary traffic: 12 per element for the triad; for AdamW 24, or 16 with moments
// in bf16, plus gradient and 16-bit copy. of_triad is the ratio of both rates, from medians;
// of_fp32_moments how many times faster than with moments in fp32, which alternate with it.
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
#include "tessera/core/error.h"

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

void run(benchmark::State& state, int threads, at::ScalarType dtype, at::ScalarType moments) {
  at::set_num_threads(threads);
  const at::Tensor a = at::zeros({kNumel}), b = at::zeros({kNumel}), c = at::zeros({kNumel});
  const at::Tensor low = dtype == at::kFloat ? at::Tensor() : at::zeros({kNumel}, dtype);
  const ops::AdamWRange plain{a, at::zeros({kNumel}, dtype), b, c, low, 0.1};
  ops::AdamWRange range = plain;
  if (moments != at::kFloat) {
    range.exp_avg = at::zeros({kNumel}, moments);
    range.exp_avg_sq = at::zeros({kNumel}, moments);
  }
  const ops::AdamWScalars scalars{.learning_rate = at::full({}, 1e-3F),
                                  .step_count = at::full({}, 2.0F)};
  const auto seconds_of = [&](const ops::AdamWRange& one) {
    return seconds(at::kCPU, [&] { ops::adamw_update({&one, 1}, {}, scalars); });
  };
  std::vector<double> triads, updates, plains;
  for (auto _ : state) {
    triads.push_back(seconds(at::kCPU, [&] { parallel_triad(a, b, c); }));
    updates.push_back(seconds_of(range));
    if (moments != at::kFloat) plains.push_back(seconds_of(plain));
    state.SetIterationTime(updates.back());
  }
  const double written = dtype == at::kFloat ? 0 : 2, read = dtype == at::kFloat ? 4 : 2;
  const double masters_and_moments = 8 + 4.0 * static_cast<double>(c10::elementSize(moments));
  const double triad_rate = 12.0 * kNumel / median(triads);
  const double rate = (masters_and_moments + read + written) * kNumel / median(updates);
  state.counters["adamw_GB_s"] = rate / 1e9;
  state.counters["triad_GB_s"] = triad_rate / 1e9;
  state.counters["of_triad"] = rate / triad_rate;
  if (!plains.empty()) state.counters["of_fp32_moments"] = median(plains) / median(updates);
}

void register_all() {
  const int most = static_cast<int>(std::thread::hardware_concurrency());
  struct Case {
    const char* name;
    at::ScalarType dtype, moments;
  };
  for (const Case& one : {Case{"bf16", at::kBFloat16, at::kFloat},
                          {"fp32", at::kFloat, at::kFloat},
                          {"bf16_moments_bf16", at::kBFloat16, at::kBFloat16}}) {
    for (int threads = 1; threads <= most; threads *= 2) {
      benchmark::RegisterBenchmark(
          concat("host_adamw/", one.name, "/threads:", threads).c_str(),
          [=](benchmark::State& state) { run(state, threads, one.dtype, one.moments); })
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
