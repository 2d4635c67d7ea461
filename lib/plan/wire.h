// SPDX-License-Identifier: MIT
#pragma once
// What sums of gradients need beside the gradients.
#include "lib/plan/stage.h"

namespace tessera {

// Elements of gradients, each a part of the sum over the tensor axis, that travel together once a
// step; of the rank that owns most of them.
double late_elements(const LayoutPlan& plan, const Stage& stage);
// Staging of those, and of sums in another dtype than the gradients'.
double wire_bytes(const LayoutPlan& plan, const Stage& stage);

}  // namespace tessera
