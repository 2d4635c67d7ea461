// SPDX-License-Identifier: MIT
#pragma once
// What matrices that are updated whole cost a rank.
#include "lib/plan/stage.h"
#include "lib/sharding/matrix_owners.h"

namespace tessera {

// Of the stage; empty without such matrices.
MatrixOwners owners_of(const LayoutPlan& plan, const Stage& stage);
double update_width(const LayoutPlan& plan);  // bytes an element
// Bytes of the exchange's buffers, on the device.
double exchange_bytes(const LayoutPlan& plan, const Stage& stage, const MatrixOwners& owners);
// Adds what the rank of the data axis sends that sends most.
void add_matrix_traffic(const LayoutPlan& plan, const MatrixOwners& owners, LayoutCost& cost);

}  // namespace tessera
