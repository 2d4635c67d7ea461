// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <algorithm>
#include <limits>

#include "tessera/generation/generate.h"

namespace tessera {

at::Tensor best_token(const at::Tensor& scores) { return scores.argmax(-1); }

at::Tensor sampled_token(const at::Tensor& scores, const at::Tensor& uniform,
                         const SamplingOptions& options) {
  const at::Tensor wide = scores.to(at::kFloat) / options.temperature;
  const int64_t kept = options.top_k == 0 ? wide.size(1) : std::min(options.top_k, wide.size(1));
  // Stable: of equal scores the lowest id comes first on every device.
  auto [sorted, ids] = wide.sort(/*stable=*/true, /*dim=*/1, /*descending=*/true);
  sorted = sorted.narrow(1, 0, kept);
  const at::Tensor probability = sorted.softmax(1).to(at::kDouble);
  const at::Tensor before = probability.cumsum(1) - probability;
  const at::Tensor left = probability.masked_fill(before.ge(options.top_p), 0.0);
  const at::Tensor cumulated = left.cumsum(1);
  const at::Tensor drawn = uniform.unsqueeze(1) * cumulated.narrow(1, kept - 1, 1);
  const at::Tensor place = cumulated.le(drawn).sum(1, /*keepdim=*/true).clamp_max(kept - 1);
  return ids.gather(1, place).squeeze(1);
}

}  // namespace tessera
