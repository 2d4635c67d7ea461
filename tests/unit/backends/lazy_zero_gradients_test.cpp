// SPDX-License-Identifier: MIT
// Logically zero gradients equal gradients that start as zeros, whatever writes them.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <torch/csrc/autograd/custom_function.h>

#include <map>

#include "lib/ops/saved_value.h"
#include "lib/testing/player.h"
#include "tessera/model/model_spec.h"
#include "tessera/ops/functional.h"
#include "tessera/ops/kernels.h"
#include "tessera/optim/sgd.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

namespace {

constexpr int64_t kVocabulary = 11, kHidden = 6, kRows = 2, kSequence = 4;

struct Case {
  bool blank = false, frozen = false;
};

// A product that adds its weight's gradient without autograd.
class ByHand : public torch::autograd::Function<ByHand> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x});
    save_value(context, "weight", weight);
    return ops::linear_forward(x, weight, {});
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto& weight = saved_value<at::Tensor>(context, "weight");
    const at::Tensor dy = gradients[0].contiguous(), x = context->get_saved_variables()[0];
    if (weight.requires_grad()) ops::linear_backward_weight(dy, x, weight.grad());
    return {ops::linear_backward_input(dy, weight), {}};
  }
};

class Part final : public Block {
 public:
  Part(size_t index, const Case& test) : index_(index), test_(test) {
    const auto generator = at::make_generator<at::CPUGeneratorImpl>(index + 1);
    const auto add = [&](const std::string& name, at::IntArrayRef shape) {
      const at::Tensor x = at::randn(shape, generator).mul_(0.3).set_requires_grad(true);
      parameters_.push_back({name, x, shape.size() > 1});
    };
    if (index == 0) add("table", {kVocabulary, kHidden});
    if (index == 1) {
      add("weight", {kHidden, kHidden});
      add("bias", {kHidden});
      add("idle", {3, 5});       // never gets a gradient
      add("sometimes", {5, 7});  // in some micro-batches only
      if (test.frozen) parameters_[0].tensor.set_requires_grad(false);
    }
    if (index == 2) add("weight", {kHidden, kHidden});
    if (index == 3) {
      parameters_.push_back({"head", tied_placeholder({kVocabulary, kHidden}), true});
    }
    for (Parameter& parameter : parameters_) {
      parameter.lazy_zero_gradient = test.blank && parameter.tensor.dim() > 1;
    }
  }
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& batch,
                     const BlockContext& context) override {
    const at::Tensor& w = parameters_[0].tensor;
    if (index_ == 0) return ops::embedding(batch.input_ids, w);
    if (index_ == 1) {
      const at::Tensor y = ByHand::apply(hidden.contiguous(), w) + parameters_[1].tensor;
      const bool odd = batch.input_ids[0][0].item<int64_t>() % 2 == 1;
      return odd ? y : y + parameters_[3].tensor.sum() * 0.1;
    }
    if (index_ == 2) return hidden + at::linear(hidden, w).tanh();
    return ops::linear_cross_entropy(hidden.flatten(0, 1), w, batch.labels.flatten(),
                                     context.loss_gradient, /*chunk_rows=*/3)
        .reshape({1});
  }
  std::vector<Parameter> parameters() override { return parameters_; }

 private:
  size_t index_;
  Case test_;
  std::vector<Parameter> parameters_;
};

ModelSpec model_of(const Case& test) {
  ModelSpec model;
  model.name = "blank";
  for (size_t i = 0; i < 4; ++i) {
    model.blocks.push_back(
        {concat("block", i), [i, test](const BuildContext&) -> std::unique_ptr<Block> {
           return std::make_unique<Part>(i, test);
         }});
  }
  model.tied.push_back({"block0", "table", "block3", "head"});
  return model;
}

MicroBatch batch_of(int64_t number) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + number);
  const auto draw = [&] { return at::randint(kVocabulary, {kRows, kSequence}, generator); };
  MicroBatch batch{.input_ids = draw().to(at::kLong), .labels = draw().to(at::kLong)};
  batch.input_ids[0][0] = number % 3;
  batch.sample_count = kRows;
  batch.token_count = batch.target_count = kRows * kSequence;
  return batch;
}

Named train(Communicator& world, const ParallelConfig& config, int accumulation, const Case& test) {
  const int rank = world.rank(), ranks = world.size();
  const Player player(world,
                      {model_of(test), {.data = ranks}, config, make_sgd({.momentum = 0.9})});
  Strategy& strategy = player.strategy();
  for (int step = 0; step < 3; ++step) {
    std::vector<MicroBatch> batches;
    for (int m = 0; m < accumulation; ++m) {
      batches.push_back(batch_of((step * ranks + rank) * accumulation + m));
    }
    strategy.forward_backward(batches);
    test::require(strategy.grad_norm_squared().isfinite().item<bool>(), "the norm is finite");
    strategy.optimizer_step(0.1);
  }
  return parameters_of(strategy);
}

void compare(const std::string& strategy, int ranks, int accumulation, bool checkpointing,
             bool frozen) {
  test::run_ranks(ranks, [&](Communicator& comm) {
    ParallelConfig config;
    config.strategy = strategy;
    config.gradient_checkpointing = checkpointing;
    if (strategy == "fsdp") config.unit_numel = 1;
    config.persistence_threshold = 8;
    const Named blank = train(comm, config, accumulation, {.blank = true, .frozen = frozen});
    const Named zeros = train(comm, config, accumulation, {.blank = false, .frozen = frozen});
    for (const auto& [name, value] : zeros) {
      test::require(at::allclose(blank.at(name), value, 1e-5, 1e-7), strategy, " on ", ranks,
                    " ranks, ", accumulation, " micro-batches: ", name, " differs");
    }
  });
}

}  // namespace

TEST_CASE("gradients that start blank train as those that start as zeros") {
  for (const char* strategy : {"single", "ddp", "zero1", "zero2", "zero3", "fsdp"}) {
    for (const int ranks : {1, 2}) {
      if (ranks > 1 && strategy == std::string("single")) continue;
      for (const int accumulation : {1, 3}) {
        compare(strategy, ranks, accumulation, false, false);
        compare(strategy, ranks, accumulation, true, true);
      }
    }
  }
}
