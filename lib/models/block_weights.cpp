// SPDX-License-Identifier: MIT
#include "lib/models/block_weights.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <utility>

#include "lib/model/expert_names.h"
#include "tessera/model/lora.h"

namespace tessera {
namespace {

// The expert axis, as an axis that cuts parameters.
TensorAxis on_expert_axis(BuildContext context) {
  context.tensor = context.expert;
  context.sequence_parallel = false;
  return TensorAxis(context);
}

}  // namespace

BlockWeights::BlockWeights(const BuildContext& context, size_t block_index,
                           NameFunction checkpoint_name)
    : context_(context),
      axis_(context),
      expert_axis_(on_expert_axis(context)),
      block_index_(block_index),
      seed_(block_seed(context.seed, block_index)),
      checkpoint_name_(std::move(checkpoint_name)) {}

at::Tensor BlockWeights::normal(const std::string& name, at::IntArrayRef shape, double deviation,
                                const TensorCut& cut) {
  return add(name, pretrained() ? read(name, shape) : draw(shape, deviation), cut);
}

at::Tensor BlockWeights::optional_normal(const std::string& name, at::IntArrayRef shape,
                                         double deviation, const TensorCut& cut) {
  const bool stored = pretrained() && context_.source->has(checkpoint_name_(name));
  return add(name, stored ? read(name, shape) : draw(shape, deviation), cut);
}

at::Tensor BlockWeights::constant(const std::string& name, at::IntArrayRef shape, double value,
                                  const TensorCut& cut) {
  return add(name, pretrained() ? read(name, shape) : at::full(shape, value), cut);
}

c10::SmallVector<LoraWeights, 3> BlockWeights::adapters(const std::vector<std::string>& names,
                                                        at::IntArrayRef outs, int64_t in,
                                                        bool inputs_cut, int parts) {
  c10::SmallVector<LoraWeights, 3> result(names.size());
  std::vector<LoraMatrices> drawn(names.size());
  const TensorCut whole{.partial_gradient = true};
  const TensorCut cut_a = inputs_cut ? TensorCut{.dim = 1} : whole,
                  cut_b = inputs_cut || parts == 0 ? whole : TensorCut{.dim = 0, .parts = parts};
  bool any = false;
  // All A's before all B's, so that one product can serve all adapters of one input.
  for (size_t i = 0; i < names.size() && context_.lora != nullptr; ++i) {
    const std::string weight = checkpoint_name_(names[i] + ".weight");
    const std::string module = weight.substr(0, weight.rfind('.'));
    if (!context_.lora->targets(module)) continue;
    any = true;
    drawn[i] = lora_matrices(context_, block_index_, module, outs[i], in);
    result[i].a = add(adapter_name(names[i] + ".weight", kLoraA), drawn[i].a, cut_a);
  }
  if (!any) return {};
  for (size_t i = 0; i < names.size(); ++i) {
    if (!result[i].defined()) continue;
    result[i].b = add(adapter_name(names[i] + ".weight", kLoraB), drawn[i].b, cut_b);
  }
  return result;
}

// Matrices of every expert's layer, each with a random stream of its own: [experts, r, in] and
// [experts, out, r].
LoraMatrices BlockWeights::draw_of_experts(const std::string& layer, int64_t experts, int64_t out,
                                           int64_t in) const {
  std::vector<at::Tensor> a, b;
  for (int64_t expert = 0; expert < experts; ++expert) {
    LoraMatrices drawn =
        lora_matrices(context_, block_index_, name_of_expert(layer, expert), out, in);
    a.push_back(std::move(drawn.a)), b.push_back(std::move(drawn.b));
  }
  return {at::stack(a), at::stack(b)};
}

c10::SmallVector<LoraWeights, 2> BlockWeights::tensor_adapters(const std::string& name,
                                                               at::IntArrayRef shape,
                                                               bool inputs_cut) {
  if (context_.lora == nullptr) return {};
  const auto stored = [&](const std::string& parameter) {
    return parameter_of_experts(checkpoint_name_(parameter));
  };
  if (!context_.lora->targets_parameter(stored(name))) return {};
  const std::string down = name.substr(0, name.rfind('.')) + ".down_proj";
  const std::string weight =
      adapted_experts(parameter_of_experts(name), context_.lora->targets_parameter(stored(down))) +
      ".weight";
  const LoraMatrices drawn = draw_of_experts(stored(name), shape[0], shape[1], shape[2]);
  const TensorCut whole{.partial_gradient = true};
  LoraWeights made;
  made.a = add(adapter_name(weight, kLoraA), drawn.a, inputs_cut ? TensorCut{.dim = 2} : whole);
  made.b = add(adapter_name(weight, kLoraB), drawn.b,
               inputs_cut ? whole : TensorCut{.dim = 1, .parts = 2});
  return {made};
}

c10::SmallVector<LoraWeights, 2> BlockWeights::expert_adapters(const std::string& name,
                                                               at::IntArrayRef shape,
                                                               bool inputs_cut) {
  if (context_.lora == nullptr) return {};
  if (!context_.lora->target_parameters.empty()) return tensor_adapters(name, shape, inputs_cut);
  const std::string folder = name.substr(0, name.rfind('.') + 1);
  const std::vector<std::string> layers = layers_of_experts(checkpoint_name_(name));
  const int64_t experts = shape[0], out = shape[1] / static_cast<int64_t>(layers.size()),
                in = shape[2];
  const TensorCut whole{.partial_gradient = true};
  c10::SmallVector<LoraWeights, 2> result(layers.size());
  std::vector<at::Tensor> all_b(layers.size());
  std::vector<std::string> weights(layers.size());
  bool any = false;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!context_.lora->targets(layers[i])) continue;
    any = true;
    const LoraMatrices drawn = draw_of_experts(layers[i], experts, out, in);
    weights[i] = folder + layers[i].substr(layers[i].rfind('.') + 1) + ".weight";
    all_b[i] = drawn.b;
    result[i].a =
        add(adapter_name(weights[i], kLoraA), drawn.a, inputs_cut ? TensorCut{.dim = 2} : whole);
  }
  if (!any) return {};
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!result[i].defined()) continue;
    result[i].b =
        add(adapter_name(weights[i], kLoraB), all_b[i], inputs_cut ? whole : TensorCut{.dim = 1});
  }
  return result;
}

Buffer BlockWeights::buffer(const std::string& name, at::IntArrayRef shape) const {
  const at::Tensor value = pretrained() ? read(name, shape) : at::zeros(shape);
  return {.name = name, .tensor = value.detach().to(context_.device).to(at::kFloat)};
}

at::Tensor BlockWeights::alias(const std::string& name, at::IntArrayRef shape,
                               const TensorCut& cut) {
  const std::vector<int64_t> own = cut_shape(name, shape, cut, axis_);
  Parameter parameter{name, tied_placeholder(own, context_.device), shape.size() >= 2,
                      place(shape, cut, axis_)};
  parameter.lazy_zero_gradient = shape.size() >= 2;
  parameters_.push_back(parameter);
  return parameter.tensor;
}

at::Tensor BlockWeights::add(const std::string& name, const at::Tensor& whole,
                             const TensorCut& cut) {
  Parameter parameter = of_experts_
                            ? cut_parameter(name, whole, whole.dim() >= 2, {.dim = 0}, expert_axis_)
                            : cut_parameter(name, whole, whole.dim() >= 2, cut, axis_);
  parameter.lazy_zero_gradient = whole.dim() >= 2;  // norms and biases are too small to matter
  // Drawn tensors are made on the CPU, so that values do not depend on the device; loaded ones are
  // copied in their own dtype.
  parameter.tensor =
      parameter.tensor.detach().to(context_.device).to(at::kFloat).set_requires_grad(true);
  parameters_.push_back(std::move(parameter));
  return parameters_.back().tensor;
}

at::Tensor BlockWeights::read(const std::string& name, at::IntArrayRef shape) const {
  return context_.source->read(checkpoint_name_(name), shape);
}

// Each piece has a generator: all threads draw a large table, and values do not depend on their
// number.
at::Tensor BlockWeights::draw(at::IntArrayRef shape, double deviation) {
  if (context_.device.is_meta()) return at::empty(shape, at::dtype(at::kFloat).device(at::kMeta));
  constexpr int64_t kPiece = int64_t{1} << 20;
  const at::Tensor result = at::empty(shape, at::kFloat), flat = result.view(-1);
  const uint64_t seed = block_seed(seed_, draws_++);
  const int64_t pieces = (flat.numel() + kPiece - 1) / kPiece;
  at::parallel_for(0, pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t piece = begin; piece < end; ++piece) {
      const int64_t first = piece * kPiece, count = std::min(kPiece, flat.numel() - first);
      auto generator = at::detail::createCPUGenerator(block_seed(seed, static_cast<size_t>(piece)));
      flat.narrow(0, first, count).normal_(0.0, deviation, generator);
    }
  });
  return result;
}

}  // namespace tessera
