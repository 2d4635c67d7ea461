// SPDX-License-Identifier: MIT
#include "lib/model/module_traits.h"

#include <torch/nn/modules.h>

#include <algorithm>
#include <array>
#include <typeindex>

namespace tessera {
namespace {

template <typename... Modules>
bool is_one_of(const torch::nn::Module& module) {
  const std::array types{std::type_index(typeid(Modules))...};
  return std::find(types.begin(), types.end(), std::type_index(typeid(module))) != types.end();
}

template <typename Module>
bool works_in_place(const torch::nn::Module& module) {
  const auto* typed = dynamic_cast<const Module*>(&module);
  return typed != nullptr && typed->options.inplace();
}
template <typename... Modules>
bool one_works_in_place(const torch::nn::Module& module) {
  return (works_in_place<Modules>(module) || ...);
}

using namespace torch::nn;

bool is_pure(const Module& module) {
  return is_one_of<SequentialImpl, IdentityImpl, FlattenImpl, UnflattenImpl, LinearImpl, Conv1dImpl,
                   Conv2dImpl, Conv3dImpl, EmbeddingImpl, LayerNormImpl, GroupNormImpl,
                   BatchNorm1dImpl, BatchNorm2dImpl, BatchNorm3dImpl, InstanceNorm1dImpl,
                   InstanceNorm2dImpl, InstanceNorm3dImpl, TanhImpl, SigmoidImpl, GELUImpl,
                   SiLUImpl, SoftplusImpl, SoftmaxImpl, LogSoftmaxImpl, MaxPool1dImpl,
                   MaxPool2dImpl, MaxPool3dImpl, AvgPool1dImpl, AvgPool2dImpl, AvgPool3dImpl,
                   AdaptiveAvgPool1dImpl, AdaptiveAvgPool2dImpl, AdaptiveAvgPool3dImpl>(module);
}

}  // namespace

ModuleTraits traits_of(const Module& root) {
  ModuleTraits traits;
  for (const auto& module : root.modules()) {
    if (is_pure(*module)) continue;
    if (is_one_of<ReLUImpl, LeakyReLUImpl, ELUImpl, HardtanhImpl, ReLU6Impl>(*module)) {
      traits.writes_input |=
          one_works_in_place<ReLUImpl, LeakyReLUImpl, ELUImpl, HardtanhImpl, ReLU6Impl>(*module);
    } else if (is_one_of<DropoutImpl, Dropout2dImpl, Dropout3dImpl>(*module)) {
      traits.draws_in_training = true;
      traits.writes_input |= one_works_in_place<DropoutImpl, Dropout2dImpl, Dropout3dImpl>(*module);
    } else {
      return {true, true, true};
    }
  }
  return traits;
}

}  // namespace tessera
