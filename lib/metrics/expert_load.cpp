// SPDX-License-Identifier: MIT
#include "lib/metrics/expert_load.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "tessera/core/error.h"

namespace tessera::metrics {
namespace {

constexpr size_t kLosses = 2;  // counters before the tokens
constexpr int64_t kSteps = 50;
constexpr double kStarvingShare = 0.01, kLeastEven = 1000;  // a share of, and tokens of an even one

}  // namespace

void add_expert_load(std::span<const double> counters, int64_t experts, StepRecord& record) {
  if (experts == 0 || counters.size() <= kLosses) return;
  if (record.supervised_tokens > 0) {
    const auto targets = static_cast<double>(record.supervised_tokens);
    record.router_balance_loss = counters[0] / targets;
    record.router_z_loss = counters[1] / targets;
  }
  const auto count = static_cast<size_t>(experts);
  const size_t layers = (counters.size() - kLosses) / count;
  check(layers * count + kLosses == counters.size(), ErrorCode::kInternal, counters.size(),
        " counters of ", experts, " experts");
  record.expert_tokens.assign(count, 0);
  double entropy = 0, least = 1;
  size_t loaded = 0;  // layers that had tokens
  for (size_t layer = 0; layer < layers; ++layer) {
    const double* const tokens = counters.data() + kLosses + layer * count;
    double sum = 0;
    for (size_t e = 0; e < count; ++e) {
      sum += tokens[e];
      record.expert_tokens[e] += static_cast<int64_t>(tokens[e]);
    }
    if (sum <= 0) continue;
    ++loaded;
    for (size_t e = 0; e < count; ++e) {
      const double share = tokens[e] / sum;
      if (share > 0) entropy -= share * std::log(share);
      least = std::min(least, share * static_cast<double>(count));
    }
  }
  record.expert_dropped_ratio = 0;
  if (loaded == 0) return;
  record.expert_least_load_ratio = least;
  if (count > 1) {
    const double even = std::log(static_cast<double>(count)) * static_cast<double>(loaded);
    record.expert_load_entropy_ratio = std::min(1.0, entropy / even);
  }
}

std::optional<std::string> StarvingWatch::add(std::span<const double> counters, int64_t experts,
                                              int64_t step) {
  if (said_ || experts < 2 || counters.size() <= kLosses) return std::nullopt;
  tokens_.resize(counters.size() - kLosses, 0);
  for (size_t i = 0; i < tokens_.size(); ++i) tokens_[i] += counters[kLosses + i];
  if (++steps_ < kSteps) return std::nullopt;
  steps_ = 0;
  const std::vector<double> tokens = std::exchange(tokens_, {});
  const auto count = static_cast<size_t>(experts);
  for (size_t first = 0; first < tokens.size(); first += count) {
    const auto begin = tokens.begin() + static_cast<ptrdiff_t>(first);
    const auto end = begin + experts;
    const double even = std::accumulate(begin, end, 0.0) / static_cast<double>(experts);
    const auto starving =
        std::count_if(begin, end, [&](double of) { return of < kStarvingShare * even; });
    if (even < kLeastEven || starving == 0) continue;
    said_ = true;
    return concat(starving, " of ", experts,
                  " experts got less than 1 % of an even share of the "
                  "tokens of ",
                  kSteps, " steps up to step ", step, ", in layer ", first / count,
                  " (from 0) of those with experts; --router_aux_loss_coef makes "
                  "the load more even");
  }
  return std::nullopt;
}

}  // namespace tessera::metrics
