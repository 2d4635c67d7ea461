// SPDX-License-Identifier: MIT
#include "benchmarks/host_cost/host_model.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <memory>
#include <string>
#include <vector>

#include "tessera/core/error.h"

namespace tessera::bench {
namespace {

constexpr int64_t kHidden = 8;

struct Shape {
  const char* name;
  int64_t rows, columns;  // 1 column: a vector
};

constexpr Shape kShapes[] = {
    {"input_layernorm.weight", kHidden, 1},
    {"input_layernorm.bias", kHidden, 1},
    {"self_attention.query_key_value.weight", 3 * kHidden, kHidden},
    {"self_attention.query_key_value.bias", 3 * kHidden, 1},
    {"self_attention.dense.weight", kHidden, kHidden},
    {"self_attention.dense.bias", kHidden, 1},
    {"post_attention_layernorm.weight", kHidden, 1},
    {"post_attention_layernorm.bias", kHidden, 1},
    {"mlp.dense_h_to_4h.weight", 4 * kHidden, kHidden},
    {"mlp.dense_h_to_4h.bias", 4 * kHidden, 1},
    {"mlp.dense_4h_to_h.weight", kHidden, 4 * kHidden},
    {"mlp.dense_4h_to_h.bias", kHidden, 1},
};

Parameter parameter(const Shape& shape) {
  const at::Tensor values =
      shape.columns == 1 ? at::zeros({shape.rows}) : at::zeros({shape.rows, shape.columns});
  return {shape.name, values.set_requires_grad(true), shape.columns > 1};
}

// Passes the gradient on; weight gradients stay zero.
struct Pass : torch::autograd::Function<Pass> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& hidden,
                            const at::Tensor&) {
    return hidden.view_as(hidden);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0], at::Tensor()};
  }
};

class Idle : public Block {
 public:
  explicit Idle(std::vector<Parameter> parameters) : parameters_(std::move(parameters)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext&) override {
    const at::Tensor input = hidden.defined() ? hidden : at::zeros({batch.input_ids.numel()});
    return Pass::apply(input, parameters_.front().tensor);
  }
  std::vector<Parameter> parameters() override { return parameters_; }

 private:
  std::vector<Parameter> parameters_;
};

class Loss final : public Idle {
 public:
  using Idle::Idle;
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext& context) override {
    return Idle::forward(hidden, batch, context).sum().reshape({1});
  }
};

}  // namespace

ModelSpec model_without_work(int blocks) {
  const Shape table{"word_embeddings.weight", 128 * kHidden, kHidden};
  ModelSpec model;
  model.name = "without work";
  model.blocks.push_back({"embedding", [=](const BuildContext&) -> std::unique_ptr<Block> {
                            std::vector<Parameter> parameters{parameter(table)};
                            parameters.push_back(parameter({"norm.weight", kHidden, 1}));
                            parameters.push_back(parameter({"norm.bias", kHidden, 1}));
                            return std::make_unique<Idle>(std::move(parameters));
                          }});
  for (int i = 0; i < blocks; ++i) {
    model.blocks.push_back({concat("h.", i), [](const BuildContext&) -> std::unique_ptr<Block> {
                              std::vector<Parameter> parameters;
                              for (const Shape& shape : kShapes) {
                                parameters.push_back(parameter(shape));
                              }
                              return std::make_unique<Idle>(std::move(parameters));
                            }});
  }
  model.blocks.push_back({"head", [=](const BuildContext&) -> std::unique_ptr<Block> {
                            std::vector<Parameter> parameters;
                            parameters.push_back(parameter({"norm.weight", kHidden, 1}));
                            parameters.push_back(parameter({"norm.bias", kHidden, 1}));
                            parameters.push_back(parameter({"weight", table.rows, kHidden}));
                            return std::make_unique<Loss>(std::move(parameters));
                          }});
  model.tied = {{"embedding", "word_embeddings.weight", "head", "weight"}};
  return model;
}

}  // namespace tessera::bench
