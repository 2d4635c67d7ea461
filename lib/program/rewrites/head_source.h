// SPDX-License-Identifier: MIT
#pragma once
// Operands of attention, back to where the heads come from.
#include <vector>

#include "lib/program/rewrites/program_view.h"

namespace tessera::program {

struct HeadSource {
  ValueId heads = kNoValue;  // before repetition and rotation
  bool by_token = false;     // [batch, sequence, heads, d]; else [batch, heads, sequence, d]
  // Tensors without parameters that enter on the way: the tables of a rotation.
  std::vector<ValueId> tables;
};

// Sources of an operand [batch, heads, sequence, d], in order of preference: before rotation, and
// the operand as it is. repeats: heads may be repeated on the way.
std::vector<HeadSource> head_sources(const ProgramView& view, ValueId operand, bool repeats);

}  // namespace tessera::program
