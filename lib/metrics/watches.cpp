// SPDX-License-Identifier: MIT
#include "lib/metrics/watches.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "lib/metrics/statistics.h"

namespace tessera::metrics {

std::optional<double> SpikeWatch::add(double loss) {
  constexpr size_t kMemory = 50, kLearning = 20;
  constexpr double kNormal = 1.4826, kSpreads = 8, kShare = 0.25;
  if (!std::isfinite(loss)) return std::nullopt;
  std::optional<double> usual;
  if (last_.size() >= kLearning) {
    const double median = describe(std::vector<double>(last_.begin(), last_.end())).median;
    std::vector<double> distances;
    for (const double one : last_) distances.push_back(std::abs(one - median));
    const double spread = kNormal * describe(distances).median;
    const double above = loss - median;
    if (above > kSpreads * spread && above > kShare * std::abs(median)) usual = median;
  }
  last_.push_back(loss);
  if (last_.size() > kMemory) last_.pop_front();
  const bool first = usual && !spiking_;
  spiking_ = usual.has_value();
  return first ? usual : std::nullopt;
}

std::optional<StragglerWatch::Straggler> StragglerWatch::add(std::span<const double> work_s) {
  constexpr double kRatio = 1.5, kLeast = 0.01;
  constexpr int64_t kSteps = 10;
  if (work_s.size() < 2) return std::nullopt;
  const auto slowest = std::ranges::max_element(work_s);
  std::vector<double> others(work_s.begin(), slowest);
  others.insert(others.end(), slowest + 1, work_s.end());
  const double median = describe(others).median;
  const bool slow = *slowest > kRatio * median && *slowest - median > kLeast;
  const int64_t rank = slow ? slowest - work_s.begin() : -1;
  steps_ = rank == rank_ ? steps_ + 1 : 1;
  rank_ = rank;
  if (!slow || steps_ != kSteps) return std::nullopt;
  return Straggler{rank, *slowest / median};
}

}  // namespace tessera::metrics
