// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Who owns what of a model that the ranks of a data axis hold together.
#include <cstdint>

#include "tessera/sharding/flat_layout.h"

namespace tessera {

/// What a sharding strategy is: the stores and the checks follow from it.
/// Every rank owns one shard of every flat buffer; where there are fewer shards than ranks of the
/// data axis, groups of neighbours share one copy of the model and the copies' gradients are
/// summed.
struct ShardingRules {
  int shards = 1;                                          ///< divides the ranks of the data axis
  ShardGranularity granularity = ShardGranularity::kFlat;  ///< how buffers are cut
  int64_t persistence_threshold = 0;                       ///< see FlatLayout
  int64_t unit_numel = 0;  ///< consecutive blocks form a unit until it holds this many elements
  /// Units of consecutive blocks are gathered, and their gradients reduced, together until they
  /// hold this many elements.
  int64_t message_numel = 0;
  /// Parameters lie in shards and are whole only where a block needs them; else in full everywhere.
  bool gathers_parameters = false;
  bool keeps_gathered = false;  ///< whole from the first use until the update
  /// Gradients are reduced into shards in every micro-batch; else once a step, in full until then.
  bool shards_gradients = false;
  StateRules state = {};  ///< the optimizer's
};

}  // namespace tessera
