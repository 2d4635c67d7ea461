#pragma once
// Attention of rows that are given piece by piece, the same for every architecture.
#include "tessera/core/key_value_cache.h"
#include "tessera/core/micro_batch.h"
#include "tessera/ops/kernels.h"

namespace tessera {

// attend(q, k, v) of whole rows; of rows' beginnings as well, whose keys and values the cache
// keeps; of rows that go on, attention of their one new token to all they have. q [batch, n, heads,
// d], k and v [batch, n, key heads, d] -> [batch, n, heads * d].
template <typename Attend>
at::Tensor attend_so_far(const MicroBatch& micro_batch, const void* block, const at::Tensor& q,
                         const at::Tensor& k, const at::Tensor& v, double scale,
                         const at::Tensor& slopes, const Attend& attend) {
  const RowsSoFar& rows = micro_batch.so_far;
  if (rows.begun()) {
    const KeyValueCache::Part& part = rows.cache->part_of(block, k);
    return ops::attention_to_cache(q, k, v, part.keys, part.values, rows.lengths, scale, slopes);
  }
  if (rows.defined()) rows.cache->begin(block, k, v);
  return attend();
}

}  // namespace tessera
