// SPDX-License-Identifier: MIT
#include "lib/metrics/statistics.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <string_view>
#include <vector>

namespace tessera::metrics {
namespace {

double percentile(const std::vector<double>& sorted, double fraction) {
  const double position = fraction * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  return std::lerp(sorted[below], sorted[above], position - static_cast<double>(below));
}

// Vendor data sheets, dense.
struct Peak {
  std::string_view device;
  double fp32, tf32, half;  // TFLOP/s
};
constexpr std::array<Peak, 6> kPeaks{{
    {"H200", 67, 494.7, 989.4},
    {"H100 PCIe", 51, 378, 756},
    {"H100", 67, 494.7, 989.4},
    {"A100", 19.5, 156, 312},
    {"L40S", 91.6, 183, 362},
    {"RTX 4090", 82.6, 82.6, 165.2},
}};

}  // namespace

Distribution describe(std::span<const double> samples) {
  if (samples.empty()) return {};
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const auto count = static_cast<double>(sorted.size());
  const double mean = std::accumulate(sorted.begin(), sorted.end(), 0.0) / count;
  double squares = 0;
  for (double sample : sorted) squares += (sample - mean) * (sample - mean);
  return {mean, percentile(sorted, 0.5), std::sqrt(squares / count), percentile(sorted, 0.9),
          percentile(sorted, 0.99)};
}

Samples::Samples() {
  first_.reserve(kFirst);
  kept_.reserve(kKept);
}

void Samples::add(double sample) {
  ++count_;
  if (first_.size() < kFirst) {
    first_.push_back(sample);
    return;
  }
  const int64_t place = count_ - static_cast<int64_t>(kFirst);  // from 1
  const double distance = sample - mean_;
  mean_ += distance / static_cast<double>(place);  // Welford 1962
  squares_ += distance * (sample - mean_);
  if ((place - 1) % stride_ != 0) return;
  if (kept_.size() == kKept) {
    for (size_t i = 0; 2 * i < kKept; ++i) kept_[i] = kept_[2 * i];
    kept_.resize(kKept / 2);
    stride_ *= 2;
  }
  kept_.push_back(sample);
}

Distribution Samples::describe(int64_t left_out) const {
  const auto skip = std::min(static_cast<size_t>(left_out), first_.size());
  std::vector<double> samples(first_.begin() + static_cast<std::ptrdiff_t>(skip), first_.end());
  samples.insert(samples.end(), kept_.begin(), kept_.end());
  Distribution result = metrics::describe(samples);
  if (stride_ == 1) return result;
  // Statistics of all samples after the first; those left in the first part are added one by one.
  double mean = mean_, squares = squares_;
  auto count = static_cast<double>(count_) - static_cast<double>(kFirst);
  for (size_t i = skip; i < first_.size(); ++i) {
    const double distance = first_[i] - mean;
    mean += distance / ++count;
    squares += distance * (first_[i] - mean);
  }
  result.mean = mean;
  result.std = std::sqrt(squares / count);
  return result;
}

int64_t warmup_steps(int64_t steps) {
  if (steps < 2) return 0;
  return std::clamp<int64_t>(steps / 5, 1, 10);
}

std::optional<double> peak_flops_per_second(const char* device_name, const char* dtype) {
  const std::string_view name = device_name, type = dtype;
  for (const Peak& peak : kPeaks) {
    if (name.find(peak.device) == std::string_view::npos) continue;
    const double tera = type == "fp32" ? peak.fp32 : type == "tf32" ? peak.tf32 : peak.half;
    return tera * 1e12;
  }
  return std::nullopt;
}

double mfu_ratio(double flops_per_token, double tokens_per_second, double peak_flops_per_second,
                 int64_t devices) {
  return flops_per_token * tokens_per_second /
         (peak_flops_per_second * static_cast<double>(devices));
}

}  // namespace tessera::metrics
