// SPDX-License-Identifier: MIT
#pragma once
#include "lib/plan/memory_plan.h"
#include "lib/plan/stage.h"
#include "lib/sharding/matrix_owners.h"

namespace tessera {

// Masters, moments and staging in host memory, and the shards of parameters where asked. A step on
// the device needs no staging but three chunks of what streams through it, and keeps fp32
// parameters where they are. owners: of the stage's whole matrices.
void move_to_host(const LayoutPlan& plan, const Stage& stage, const MatrixOwners& owners,
                  LayoutCost& cost);

// Bytes of offloaded state that can stay on every rank's device, which has so much memory, beside
// all that the plan counts and a reserve (OffloadConfig::device_bytes, which is not looked at).
int64_t room_for_state(const LayoutPlan& plan, const BatchShape& batch, const Card& card,
                       double memory, const BetweenSteps& between = {});

}  // namespace tessera
