// SPDX-License-Identifier: MIT
#include "lib/plan/dry_first_step.h"

#include <ATen/ATen.h>

#include <vector>

#include "lib/ops/update.h"
#include "lib/plan/dry_run.h"

namespace tessera {

CommunicationLedger dry_first_step(const DryStep& step) {
  DryRun run(step);
  const std::vector<MicroBatch> batches = without_memory(step.micro_batches);
  const at::Tensor scale = at::ones({}, at::TensorOptions(at::kFloat).device(at::kMeta));
  run.strategy().set_loss_scale(scale);
  run.once([&](Strategy& strategy) {
    strategy.forward_backward(batches);
    const auto [norm, clip, factor, found_inf] =
        ops::clipping(strategy.grad_norm_squared(), scale, /*max_norm=*/1);
    strategy.scale_gradients(factor);
    strategy.optimizer_step(/*learning_rate=*/1e-3, found_inf);
  });
  return run.communication();
}

}  // namespace tessera
