#include "tessera/backends/zero/zero_stage1.h"

namespace tessera {

std::unique_ptr<ParameterStore> ZeroStage1::make_parameters() {
  return std::make_unique<ResidentParameters>(units(), data(),
                                              store_options(config().precision.parameter));
}

std::unique_ptr<GradientStore> ZeroStage1::make_gradients() {
  return std::make_unique<FullGradients>(units(), data(), store_options(gradient_dtype()));
}

}  // namespace tessera
