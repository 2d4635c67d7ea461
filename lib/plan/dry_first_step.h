// SPDX-License-Identifier: MIT
#pragma once
// What a rank calls in the first step after attach().
#include "tessera/plan/dry_step.h"

namespace tessera {

// As Trainer makes it: gradients are clipped, the update may be skipped. Errors as of dry_step().
CommunicationLedger dry_first_step(const DryStep& step);

}  // namespace tessera
