// SPDX-License-Identifier: MIT
#pragma once
// What the names and options of a layout mean to its formulas.
#include <c10/core/ScalarType.h>

#include "tessera/plan/layout_cost.h"
#include "tessera/sharding/sharding_rules.h"

namespace tessera {

// Bytes an element.
struct Dtypes {
  double parameter, gradient, reduce;
  explicit Dtypes(const PrecisionConfig& precision);
};

// Whether gradients change their dtype for the wire.
bool converts(const PrecisionConfig& precision);

// The share of a buffer that a rank of a ring sends in an all-gather or a reduce-scatter.
inline double ring(int ranks) { return (ranks - 1.0) / ranks; }

int end_ranks(const LayoutPlan& plan);  // that share embedding and head
ShardingRules rules_of(const LayoutPlan& plan);

}  // namespace tessera
