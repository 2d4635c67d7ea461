// SPDX-License-Identifier: MIT
#pragma once
// Dropout of a block, drawn from the micro-batch's seed and the block's index. So all layouts, and
// a recomputed block, drop the same elements.
#include <cstdint>

#include "lib/core/gradient_columns.h"
#include "lib/ops/random.h"
#include "tessera/core/micro_batch.h"
#include "tessera/model/block_context.h"
#include "tessera/model/model_spec.h"
#include "tessera/model/tensor_parallel.h"
#include "tessera/ops/kernels.h"

namespace tessera {

// Dropouts of a block; the value is part of the seed.
enum DropoutSite : size_t {
  kEmbeddingDropout,
  kAttentionDropout,
  kContextDropout,
  kInnerDropout,
  kAdapterDropout
};

class BlockDropout {
 public:
  BlockDropout(const BuildContext& context, size_t block_index)
      : axis_(context), block_(block_seed(context.seed, block_index)) {}
  // Dropout of [..., width] between tensor-parallel layers; with sequence parallelism, of the
  // rank's own tokens.
  ops::Dropout of(double probability, const MicroBatch& micro_batch, const BlockContext& context,
                  DropoutSite site, int64_t width) const {
    if (!context.training) return {};
    const int64_t own = axis_.rows_per_rank(micro_batch.input_ids.numel());
    const int64_t first = axis_.sequence_parallel() ? axis_.rank() * own * width : 0;
    return {probability, seed(context.seed, site), first,
            in_memory(context, site, probability, [block = block_, site](uint64_t seed) {
              return of_site(seed, block, site);
            })};
  }
  // Dropout of attention probabilities in the rank's `heads` heads.
  ops::AttentionDropout of_attention(double probability, const BlockContext& context,
                                     int64_t heads) const {
    if (!context.training) return {};
    const int64_t first = axis_.rank() * heads;
    return {
        probability, seed(context.seed, kAttentionDropout), first,
        in_memory(context, kAttentionDropout, probability, [block = block_, first](uint64_t seed) {
          return ops::mixed_seed(of_site(seed, block, kAttentionDropout), first);
        })};
  }

 private:
  static uint64_t of_site(uint64_t seed, uint64_t block, DropoutSite site) {
    return block_seed(block_seed(seed, block), site);
  }
  uint64_t seed(uint64_t micro_batch, DropoutSite site) const {
    return of_site(micro_batch, block_, site);
  }
  // The seed in device memory; undefined without capture or dropout.
  at::Tensor in_memory(const BlockContext& context, DropoutSite site, double probability,
                       const RecordedSeeds::Rule& rule) const {
    const GradientColumns* shared = context.gradient_columns.get();
    if (shared == nullptr || shared->seeds == nullptr || probability == 0) return {};
    return shared->seeds->place_of({block_, site}, rule);
  }

  TensorAxis axis_;
  uint64_t block_;
};

}  // namespace tessera
