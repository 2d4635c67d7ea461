#include "tessera/backends/data_parallel/ddp.h"

namespace tessera {

std::unique_ptr<ParameterStore> Ddp::make_parameters() {
  return std::make_unique<ResidentParameters>(units(), data(),
                                              store_options(config().precision.parameter));
}

std::unique_ptr<GradientStore> Ddp::make_gradients() {
  return std::make_unique<FullGradients>(units(), data(), store_options(gradient_dtype()));
}

}  // namespace tessera
