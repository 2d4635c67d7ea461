// SPDX-License-Identifier: MIT
#include "tessera/generation/perplexity.h"

#include <algorithm>
#include <cmath>

#include "lib/generation/window_losses.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

struct Windows {
  std::vector<TokenWindow> list;
  std::vector<size_t> new_tokens;  // by window
};

// Windows that predict at least one token.
Windows windows_of(size_t tokens, const PerplexityOptions& options) {
  const auto window = static_cast<size_t>(options.window);
  Windows windows;
  for (size_t begin = 0, seen = 0; seen < tokens; begin += static_cast<size_t>(options.stride)) {
    const size_t end = std::min(begin + window, tokens);
    const TokenWindow next{begin, end - begin, std::max(seen, begin + 1) - begin};
    if (next.targets() > 0) {
      windows.list.push_back(next);
      windows.new_tokens.push_back(end - seen);
    }
    seen = end;
  }
  return windows;
}

}  // namespace

Perplexity perplexity(Strategy& strategy, const DeviceMesh& mesh, std::span<const int64_t> ids,
                      const PerplexityOptions& options) {
  check(options.window >= 2 && options.stride >= 1 && options.stride <= options.window &&
            options.batch_size >= 1,
        ErrorCode::kInvalidArgument, "perplexity: window ", options.window, ", stride ",
        options.stride, ", batch size ", options.batch_size,
        "; expected a window of at least 2, a stride from 1 to the window, and a positive batch "
        "size");
  check(ids.size() >= 2, ErrorCode::kInvalidArgument, "perplexity: the text has ", ids.size(),
        " tokens; at least two are needed, for the first is never predicted");
  const Windows windows = windows_of(ids.size(), options);
  const std::vector<double> losses =
      window_losses(strategy, mesh, ids, windows.list, options.batch_size);
  Perplexity result{.windows = static_cast<int64_t>(losses.size())};
  double weighted = 0, weights = 0, total = 0;
  for (size_t i = 0; i < losses.size(); ++i) {
    const auto targets = static_cast<double>(windows.list[i].targets());
    const auto weight = static_cast<double>(windows.new_tokens[i]) - 1;
    weighted += losses[i] / targets * weight;
    weights += weight;
    total += losses[i];
    result.predicted_tokens += static_cast<int64_t>(windows.list[i].targets());
  }
  result.value = std::exp(weighted / weights);
  result.per_token = std::exp(total / static_cast<double>(result.predicted_tokens));
  return result;
}

}  // namespace tessera
