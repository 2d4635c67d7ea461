// SPDX-License-Identifier: MIT
#include "lib/run/offload_share.h"

#include "lib/plan/offload.h"
#include "lib/run/layout.h"
#include "lib/run/recomputation.h"

namespace tessera::programs {

int64_t choose_device_bytes(const Prepared& run, const ParallelConfig& config, at::Device device,
                            int64_t ranks, const AvailableMemory& available) {
  if (device.is_cpu()) return 0;
  LayoutPlan plan = layout_plan(run, run.options, static_cast<int>(ranks));
  plan.parallel = config;
  plan.on_gpu = true;
  const BatchShape batch = largest_shape(run, run.options);
  const BetweenSteps between = between_steps(run, run.options, run.options.data.max_seq_length);
  const Card card = card_in_use(device);
  if (plan_or_warn(plan, batch, card, between).empty()) return 0;
  return room_for_state(plan, batch, card, static_cast<double>(available.device), between);
}

}  // namespace tessera::programs
