// SPDX-License-Identifier: MIT
#pragma once
// Adapters added to a torch module.
#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tessera/model/block.h"
#include "tessera/model/model_spec.h"

namespace torch::nn {
class LinearImpl;
class Module;
}  // namespace torch::nn

namespace tessera {

class ModuleAdapters {
 public:
  ModuleAdapters() = default;  // no adapters
  // Adapters of every torch::nn::Linear that context.lora targets. prefix: of names in checkpoints;
  // aliases: weights of another block or module.
  ModuleAdapters(const torch::nn::Module& root, const std::string& prefix,
                 const std::set<std::string>& aliases, size_t block_index,
                 const BuildContext& context);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  // Calls the function while the layers compute with W + scale B A.
  void call(const std::function<void()>& forward) const;

 private:
  struct Adapted {
    std::shared_ptr<torch::nn::LinearImpl> layer;
    at::Tensor weight, a, b;
  };
  std::vector<Adapted> layers_;
  std::vector<Parameter> parameters_;
  double scale_ = 1;
};

}  // namespace tessera
