// SPDX-License-Identifier: MIT
#include "tessera/generation/log_probabilities.h"

#include <algorithm>
#include <numeric>

#include "lib/generation/window_losses.h"
#include "tessera/core/error.h"

namespace tessera {

std::vector<double> log_probabilities(Strategy& strategy, const DeviceMesh& mesh,
                                      std::span<const Continuation> continuations,
                                      int64_t batch_size) {
  check(batch_size > 0, ErrorCode::kInvalidArgument, "log_probabilities: batch_size is ",
        batch_size, "; expected a positive number");
  std::vector<size_t> order(continuations.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](size_t i) {
    return continuations[i].prompt.size() + continuations[i].ids.size();
  });
  std::vector<int64_t> ids;
  std::vector<TokenWindow> windows;
  for (const size_t i : order) {
    const Continuation& one = continuations[i];
    check(!one.prompt.empty(), ErrorCode::kInvalidArgument, "log_probabilities: prompt ", i,
          " is empty; give it at least one token");
    windows.push_back({ids.size(), one.prompt.size() + one.ids.size(), one.prompt.size()});
    ids.insert(ids.end(), one.prompt.begin(), one.prompt.end());
    ids.insert(ids.end(), one.ids.begin(), one.ids.end());
  }
  const std::vector<double> losses = window_losses(strategy, mesh, ids, windows, batch_size);
  std::vector<double> result(continuations.size());
  for (size_t i = 0; i < order.size(); ++i) result[order[i]] = -losses[i];
  return result;
}

}  // namespace tessera
