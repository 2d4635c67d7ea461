// SPDX-License-Identifier: MIT
#pragma once
// Summary statistics of a run.
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace tessera::metrics {

struct Distribution {
  double mean = 0, median = 0, std = 0, p90 = 0, p99 = 0;  // std: population standard deviation
};
// Percentiles interpolate linearly between sorted samples (as NumPy). All zero for no samples.
Distribution describe(std::span<const double> samples);

// describe() for an endless stream in constant memory. Exact up to kKept samples; beyond,
// percentiles use every second, fourth, ... sample.
class Samples {
 public:
  static constexpr size_t kKept = 4096;
  static constexpr size_t kFirst = 10;  // limit of left_out in describe()
  Samples();
  void add(double sample);
  int64_t count() const { return count_; }
  // Statistics without the first `left_out` samples, at most kFirst.
  Distribution describe(int64_t left_out = 0) const;

 private:
  std::vector<double> first_, kept_;
  int64_t count_ = 0, stride_ = 1;
  double mean_ = 0, squares_ = 0;  // after the first kFirst: mean, and sum of squared deviations
};

// Steps excluded from timing statistics at the start of a run: 10, but at most a fifth of all, and
// at least one if there are two.
int64_t warmup_steps(int64_t steps);

// Dense peak FLOP/s of a device by the driver's name ("NVIDIA H200") and compute dtype ("fp32",
// "tf32", "bf16", "fp16"); empty for unknown devices.
std::optional<double> peak_flops_per_second(const char* device_name, const char* dtype);

// Model FLOPs utilisation (Chowdhery et al. 2022): the tokens' model FLOPs over the devices' peak.
double mfu_ratio(double flops_per_token, double tokens_per_second, double peak_flops_per_second,
                 int64_t devices);

}  // namespace tessera::metrics
