// SPDX-License-Identifier: MIT
#pragma once
// Attention in a program: one operator of ATen, or products with a softmax between them.
#include <optional>
#include <string>
#include <vector>

#include "lib/program/rewrites/program_view.h"

namespace tessera::program {

struct AttentionSource {
  ValueId query = kNoValue, key = kNoValue, value = kNoValue;  // [batch, heads, sequence, d]
  double scale = 1;
  double softcap = 0;        // 0: none
  ValueId sinks = kNoValue;  // a parameter [heads]
  // What it adds to scores: a mask, or its scores without their product. kNoValue: it is causal.
  ScoreBias bias = {};
  std::string reason;  // why it is none of tessera's; empty: it may be one
};

// The attention whose heads this node joins to [batch, sequence, heads * d]; nullopt: there is
// none.
std::optional<AttentionSource> attention_before(const ProgramView& view, const Node& node);

}  // namespace tessera::program
