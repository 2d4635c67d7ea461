// SPDX-License-Identifier: MIT
#include "lib/tools/plan/longest_row.h"

#include <algorithm>

namespace tessera::programs {
namespace {

constexpr int64_t kStep = 256, kMost = int64_t{1} << 24;

}  // namespace

int64_t longest_row(const Prepared& model, const TrainOptions& options, const PlannedHosts& hosts,
                    std::shared_ptr<EqualPasses> passes) {
  const int64_t positions = model.config().max_positions;
  const int64_t most = positions > 0 && !options.data.packing ? std::min(positions, kMost) : kMost;
  const auto fits = [&](int64_t tokens) {
    TrainOptions o = options;
    o.data.max_seq_length = tokens;
    return plan_run(model, o, hosts, passes).fits(hosts.card);
  };
  // fits(longest) holds, fits(too_long) does not; both in steps.
  int64_t longest = 0, too_long = std::max<int64_t>(options.data.max_seq_length / kStep, 1);
  while (too_long * kStep < most && fits(too_long * kStep)) {
    longest = too_long;
    too_long *= 2;
  }
  if (too_long * kStep >= most) {
    if (fits(most)) return most;
    too_long = (most + kStep - 1) / kStep;
  }
  while (too_long - longest > std::max<int64_t>(longest / 64, 1)) {
    const int64_t middle = (longest + too_long) / 2;
    (fits(middle * kStep) ? longest : too_long) = middle;
  }
  return longest * kStep;
}

}  // namespace tessera::programs
