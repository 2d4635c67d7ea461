// SPDX-License-Identifier: MIT
#pragma once
// A rank's operations in the first step after attach().
#include "tessera/plan/dry_step.h"

namespace tessera {

// A step as Trainer makes it: gradients are clipped and the update may be skipped. Throws as
// dry_step().
CommunicationLedger dry_first_step(const DryStep& step);

}  // namespace tessera
