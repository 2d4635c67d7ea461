// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Sharding rules: division of a model's state over the ranks of a data axis.
#include <cstdint>

#include "tessera/ops/fp8.h"
#include "tessera/sharding/flat_layout.h"

namespace tessera {

/// Definition of a sharding strategy, from which stores and checks follow. Every rank owns one
/// shard of every flat buffer. With fewer shards than data ranks, groups of neighbouring ranks hold
/// one replica each, whose gradients are summed.
struct ShardingRules {
  int shards = 1;  ///< number of shards; divides the data ranks
  ShardGranularity granularity = ShardGranularity::kFlat;  ///< division of the buffers
  int64_t persistence_threshold = 0;                       ///< see FlatLayout
  int64_t unit_numel = 0;  ///< consecutive blocks form a unit until it has this many elements
  /// Gathers and reductions of consecutive units are coalesced until they have this many elements.
  int64_t message_numel = 0;
  /// Parameters are sharded and gathered for each block; else unsharded everywhere.
  bool gathers_parameters = false;
  bool keeps_gathered = false;  ///< gathered parameters stay unsharded until the update
  /// Linear layers whose trained weights training passes gather as 8-bit codes.
  Fp8Layers coded_layers = {false, false, false, false};
  /// Gradients are reduce-scattered in every micro-batch; else full until one reduction a step.
  bool shards_gradients = false;
  StateRules state = {};  ///< the optimizer's requirements
};

}  // namespace tessera
