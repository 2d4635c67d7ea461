// SPDX-License-Identifier: MIT
#pragma once
// The fixed buffers that units in flight take turns in.
#include "lib/plan/stage.h"
#include "tessera/sharding/buffer_slots.h"

namespace tessera {

// size: elements of a unit that need a buffer. all_apart: no turns are taken.
SlotAssignment slots_of(const Stage& stage, int64_t (PlannedUnit::*size)() const, int depth,
                        bool all_apart = false);
double elements_of(const SlotAssignment& slots);

// Elements gathered in a step: a unit is gathered when it is needed and its buffer holds another
// turn's, or its own values of before the last update.
double gathered_elements(const Stage& stage, const SlotAssignment& slots);

}  // namespace tessera
