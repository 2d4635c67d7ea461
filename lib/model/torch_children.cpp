// SPDX-License-Identifier: MIT
#include <torch/nn/modules.h>

#include "tessera/model/callable.h"

namespace tessera {
namespace {

using namespace torch::nn;

template <typename... Modules>
detail::Child first_of(const std::shared_ptr<Module>& child) {
  detail::Child call;
  static_cast<void>((detail::call_child<Modules>(child, call) || ...));
  return call;
}

}  // namespace

// Other classes take or return more than tensors.
detail::Child detail::child_of_torch(const std::shared_ptr<Module>& child) {
  return first_of<SequentialImpl, IdentityImpl, LinearImpl, FlattenImpl, EmbeddingImpl, Conv1dImpl,
                  Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl, ConvTranspose2dImpl, LayerNormImpl,
                  GroupNormImpl, BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl, DropoutImpl,
                  Dropout2dImpl, ReLUImpl, LeakyReLUImpl, ELUImpl, GELUImpl, SiLUImpl, TanhImpl,
                  SigmoidImpl, SoftmaxImpl, LogSoftmaxImpl, MaxPool1dImpl, MaxPool2dImpl,
                  AvgPool1dImpl, AvgPool2dImpl, AdaptiveAvgPool1dImpl, AdaptiveAvgPool2dImpl,
                  TransformerEncoderLayerImpl, TransformerEncoderImpl>(child);
}

}  // namespace tessera
