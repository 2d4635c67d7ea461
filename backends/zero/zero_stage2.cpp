#include "tessera/backends/zero/zero_stage2.h"

namespace tessera {

std::unique_ptr<GradientStore> ZeroStage2::make_gradients() {
  if (config().reduce_at_boundary) return ShardingStrategy::make_gradients();
  return std::make_unique<ShardedGradients>(units(), shards(),
                                            store_options(config().precision.gradient_dtype()));
}

}  // namespace tessera
