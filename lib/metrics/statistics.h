// SPDX-License-Identifier: MIT
#pragma once
// Numbers that summarise a run.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tessera::metrics {

struct Distribution {
  double mean = 0, median = 0, std = 0, p90 = 0, p99 = 0;  // std: of the population
};
// Percentiles interpolate linearly between the sorted samples (as NumPy does). All zero for no
// samples.
Distribution describe(std::span<const double> samples);

// What describe() needs of a stream without end, in memory that does not grow. Exact for the first
// kKept samples; behind them percentiles are those of every second, fourth, ... sample.
class Samples {
 public:
  static constexpr size_t kKept = 4096;
  static constexpr size_t kFirst = 10;  // that describe() can leave out
  Samples();
  void add(double sample);
  int64_t count() const { return count_; }
  // Without the first ones, of which there are at most kFirst.
  Distribution describe(int64_t left_out = 0) const;

 private:
  std::vector<double> first_, kept_;
  int64_t count_ = 0, stride_ = 1;
  double mean_ = 0, squares_ = 0;  // behind the first: mean, and distances from it
};

// Steps left out of the timing statistics at the start of a run: 10, but never more than a fifth of
// it, and one at least when there are two.
int64_t warmup_steps(int64_t steps);

// Dense peak of one device in FLOP/s by its name as the driver gives it ("NVIDIA H200") and the
// compute dtype
// ("fp32", "tf32", "bf16", "fp16"); no value for devices that are not in the table.
std::optional<double> peak_flops_per_second(const char* device_name, const char* dtype);

// Model FLOPs utilisation (Chowdhery et al. 2022): model FLOPs of the tokens over what the devices
// could do.
double mfu_ratio(double flops_per_token, double tokens_per_second, double peak_flops_per_second,
                 int64_t devices);

}  // namespace tessera::metrics
