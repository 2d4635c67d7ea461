// SPDX-License-Identifier: MIT
#include "tests/unit/plan/pile.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include "lib/models/block_weights.h"
#include "tessera/core/error.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera::testing {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

constexpr int64_t kWidth = 8, kSmall = 512;

// x + the sum of a parameter, whose gradient is added in place: autograd would first allocate one
// as large as the parameter.
class AddSum : public Function<AddSum> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& parameter) {
    context->save_for_backward({parameter});
    return x + parameter.sum();
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor parameter = context->get_saved_variables()[0];
    if (parameter.requires_grad()) parameter.mutable_grad().add_(gradients[0].sum());
    return {gradients[0], {}};
  }
};

class PileBlock : public Block {
 public:
  enum class Kind { kFirst, kLayer, kLast };
  PileBlock(const BuildContext& context, int64_t large, Kind kind) : axis_(context), kind_(kind) {
    if (large == 0) return;
    BlockWeights weights(context, 0, {});
    if (kind == Kind::kLast) {
      weights.alias("large", {large}, {.dim = 0});
    } else {
      weights.constant("large", {large}, 0.0, {.dim = 0});
    }
    weights.constant("small", {kSmall}, 0.0);
    parameters_ = weights.take();
  }

  at::Tensor forward(const at::Tensor& hidden, const MicroBatch&, const BlockContext&) override {
    at::Tensor sum = hidden.defined()
                         ? hidden * 1
                         : at::zeros({1, kWidth}, parameters_.front().tensor.options());
    for (const Parameter& parameter : parameters_) sum = AddSum::apply(sum, parameter.tensor);
    if (axis_.size() > 1) sum = reduce_from_tensor_ranks(sum / axis_.size(), axis_);
    return kind_ == Kind::kLast ? sum.to(at::kFloat).sum().reshape({1}) : sum;
  }

  std::vector<Parameter> parameters() override { return parameters_; }

 private:
  TensorAxis axis_;
  Kind kind_;
  std::vector<Parameter> parameters_;
};

}  // namespace

ModelSpec make_pile(const PileConfig& config) {
  using Kind = PileBlock::Kind;
  ModelSpec model{.name = "pile"};
  auto add = [&](const std::string& name, int64_t large, Kind kind) {
    model.blocks.push_back({name, [=](const BuildContext& context) -> std::unique_ptr<Block> {
                              return std::make_unique<PileBlock>(context, large, kind);
                            }});
  };
  add("first", config.ends, Kind::kFirst);
  for (size_t i = 0; i < config.layers.size(); ++i) {
    add(concat("layer.", i), config.layers[i], Kind::kLayer);
  }
  add("last", config.ends, Kind::kLast);
  model.tied.push_back({"first", "large", "last", "large"});
  model.tensor_divisor = 8;
  model.shareable_ends = true;
  return model;
}

}  // namespace tessera::testing
