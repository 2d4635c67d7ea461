// SPDX-License-Identifier: MIT
#pragma once
#include "lib/plan/stage.h"

namespace tessera {

// What is not empty.
void add(LayoutCost& cost, Traffic traffic);

// What one rank sends in a step, given the elements that it gathers.
void add_traffic(const LayoutPlan& plan, const Stage& stage, double gathered, LayoutCost& cost);

}  // namespace tessera
