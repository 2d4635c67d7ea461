// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Statistics of a node's resource samples, and of several nodes together.
#include <cstdint>
#include <optional>
#include <string>

#include "tessera/metrics/event.h"

namespace tessera::metrics {

/// Peak, mean and minimum of a sampled quantity.
struct Track {
  int64_t peak = 0, least = 0, count = 0;  ///< 0 before the first sample
  double sum = 0;                          ///< sum of the samples

  ///@{
  /// Adds a sample, or another track's samples; unknown samples are ignored.
  void add(std::optional<int64_t> sample);
  void add(const Track& other);
  ///@}
  Value peak_value() const { return count ? Value(peak) : Value(); }    ///< unknown without samples
  Value least_value() const { return count ? Value(least) : Value(); }  ///< unknown without samples
  Value mean_value() const;                                             ///< unknown without samples
};

/// Statistics of resources: GPUs one by one, host memory by node, whose peak is the largest node's.
struct ResourceSummary {
  Track gpu_used, cpu_rss, cpu_pss, pinned;  ///< samples in bytes
  double gpu_util_sum = 0;                   ///< sum of utilisation samples, each in [0, 1]
  int64_t gpu_util_count = 0;                ///< number of utilisation samples

  ///@{
  /// Adds one sample, or another node's samples.
  void add(const ResourceRecord& sample);
  void add(const ResourceSummary& node);
  ///@}
  /// Serialised form, for exchange between ranks of the same program.
  std::string bytes() const;
  static ResourceSummary from_bytes(const std::string& bytes);  ///< the inverse of bytes()
};

}  // namespace tessera::metrics
