#pragma once
// Makes a block's parameters one after the other: from the checkpoint when there is one, else drawn
// from the block's seed.
#include <functional>
#include <string>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera {

class BlockWeights {
 public:
  using NameFunction = std::function<std::string(const std::string& parameter)>;
  // checkpoint_name maps this block's parameter names to the checkpoint's.
  BlockWeights(const BuildContext& context, size_t block_index, NameFunction checkpoint_name);

  at::Tensor normal(const std::string& name, at::IntArrayRef shape, double deviation);
  // Drawn also when there is a checkpoint that lacks the name.
  at::Tensor optional_normal(const std::string& name, at::IntArrayRef shape, double deviation);
  at::Tensor constant(const std::string& name, at::IntArrayRef shape, double value);
  at::Tensor alias(const std::string& name, at::IntArrayRef shape);  // a tied placeholder

  std::vector<Parameter> take() { return std::move(parameters_); }

 private:
  at::Tensor add(const std::string& name, at::Tensor value);
  bool pretrained() const { return context_.source != nullptr; }
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const;
  at::Tensor draw(at::IntArrayRef shape, double deviation);

  BuildContext context_;
  uint64_t seed_;
  size_t draws_ = 0;
  NameFunction checkpoint_name_;
  std::vector<Parameter> parameters_;
};

}  // namespace tessera
