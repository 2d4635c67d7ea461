#pragma once
#include "lib/plan/stage.h"

namespace tessera {

// Masters, moments and staging in host memory, and the shards of parameters where asked. A step on
// the device needs no staging but three chunks of what streams through it, and keeps fp32
// parameters where they are.
void move_to_host(const LayoutPlan& plan, const Stage& stage, LayoutCost& cost);

}  // namespace tessera
