#pragma once
// The fixed buffers that units in flight take turns in.
#include <vector>

#include "lib/plan/stage.h"

namespace tessera {

// Units of one size take turns in `depth` buffers; tied units have their own.
struct Slots {
  std::vector<size_t> slot_of;  // by unit
  int64_t elements = 0;
  Slots(const std::vector<PlannedUnit>& units, int64_t (PlannedUnit::*size)() const, int depth,
        bool all_alone);
};

// Elements gathered in a step: a unit is gathered when it is needed and another one has used its
// buffer since.
double gathered_elements(const Stage& stage, const Slots& slots);

}  // namespace tessera
