// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// What the samples of a node's resources come to, and those of several nodes together.
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
  /// Counts a sample, or what another one counted; an unknown sample counts for nothing.
  void add(std::optional<int64_t> sample);
  void add(const Track& other);
  ///@}
  Value peak_value() const { return count ? Value(peak) : Value(); }    ///< unknown without samples
  Value least_value() const { return count ? Value(least) : Value(); }  ///< unknown without samples
  Value mean_value() const;                                             ///< unknown without samples
};

/// GPUs count one by one, host memory by node: its peak is the largest node's.
struct ResourceSummary {
  Track gpu_used, cpu_rss, cpu_pss, pinned;  ///< samples in bytes
  double gpu_util_sum = 0;                   ///< sum of utilisation samples, each in [0, 1]
  int64_t gpu_util_count = 0;                ///< number of utilisation samples

  ///@{
  /// Counts one sample, or another node's.
  void add(const ResourceRecord& sample);
  void add(const ResourceSummary& node);
  ///@}
  /// For ranks of the same program.
  std::string bytes() const;
  static ResourceSummary from_bytes(const std::string& bytes);  ///< the inverse of bytes()
};

}  // namespace tessera::metrics
