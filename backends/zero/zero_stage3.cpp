#include "tessera/backends/zero/zero_stage3.h"

namespace tessera {

std::unique_ptr<ParameterStore> ZeroStage3::make_parameters() {
  return std::make_unique<GatheredParameters>(units(), shards(),
                                              store_options(config().precision.parameter));
}

std::unique_ptr<GradientStore> ZeroStage3::make_gradients() {
  return std::make_unique<ShardedGradients>(units(), shards(),
                                            store_options(config().precision.gradient_dtype()));
}

}  // namespace tessera
