#pragma once
// Attention of rows that are given piece by piece, the same for every architecture.
#include "tessera/core/key_value_cache.h"
#include "tessera/core/micro_batch.h"
#include "tessera/ops/kernels.h"

namespace tessera {

// attend() of whole rows; of rows' beginnings as well, whose keys and values the cache keeps; of
// rows that go on, attention of their one new token to all they have -> [batch, n, heads * d].
template <typename Attend>
at::Tensor attend_so_far(const MicroBatch& micro_batch, const void* block,
                         const ops::QueriesKeysValues& given, const ops::SelfAttention& attention,
                         const Attend& attend) {
  const auto& [q, k, v] = given;
  const RowsSoFar& rows = micro_batch.so_far;
  if (rows.begun()) {
    const KeyValueCache::Part& part = rows.cache->part_of(block, k);
    return ops::attention_to_cache(q, k, v, part.keys, part.values, rows.lengths, attention.scale,
                                   attention.slopes);
  }
  if (rows.defined()) rows.cache->begin(block, k, v);
  return attend();
}

}  // namespace tessera
