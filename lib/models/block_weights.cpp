#include "lib/models/block_weights.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <utility>

namespace tessera {

BlockWeights::BlockWeights(const BuildContext& context, size_t block_index,
                           NameFunction checkpoint_name)
    : context_(context),
      generator_(at::detail::createCPUGenerator(block_seed(context.seed, block_index))),
      checkpoint_name_(std::move(checkpoint_name)) {}

at::Tensor BlockWeights::normal(const std::string& name, at::IntArrayRef shape, double deviation) {
  return add(name, pretrained() ? read(name, shape) : draw(shape, deviation));
}

at::Tensor BlockWeights::optional_normal(const std::string& name, at::IntArrayRef shape,
                                         double deviation) {
  const bool stored = pretrained() && context_.source->has(checkpoint_name_(name));
  return add(name, stored ? read(name, shape) : draw(shape, deviation));
}

at::Tensor BlockWeights::constant(const std::string& name, at::IntArrayRef shape, double value) {
  return add(name, pretrained() ? read(name, shape) : at::full(shape, value));
}

at::Tensor BlockWeights::alias(const std::string& name, at::IntArrayRef shape) {
  parameters_.push_back({name, tied_placeholder(shape), shape.size() >= 2});
  return parameters_.back().tensor;
}

at::Tensor BlockWeights::add(const std::string& name, at::Tensor value) {
  // The device of a drawn tensor does not matter to its values: all are drawn on the CPU.
  value = value.to(context_.device, at::kFloat, /*non_blocking=*/false, /*copy=*/false);
  value.set_requires_grad(true);
  parameters_.push_back({name, value, value.dim() >= 2});
  return value;
}

at::Tensor BlockWeights::read(const std::string& name, at::IntArrayRef shape) const {
  return context_.source->read(checkpoint_name_(name), shape);
}

at::Tensor BlockWeights::draw(at::IntArrayRef shape, double deviation) {
  return at::empty(shape, at::kFloat).normal_(0.0, deviation, generator_);
}

}  // namespace tessera
