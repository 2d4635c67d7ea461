// SPDX-License-Identifier: MIT
// BlockContext::deferred_gradients: hand-scheduled layers compute their input's gradient first and
// weight gradients later, with equal bits.
#include "tessera/core/deferred_gradients.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "tessera/model/lora.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/plain_models.h"
#include "tests/support/sized.h"
#include "tests/unit/models/decoder_cases.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kRows = 2, kLength = 9, kHidden = 24, kVocabulary = 19;

DecoderConfig one_layer(const std::string& family, double dropout = 0) {
  auto config = sized(family, {.vocabulary = kVocabulary,
                               .hidden = kHidden,
                               .heads = 3,
                               .layers = 1,
                               .inner = 40,
                               .key_heads = 1,
                               .head_dim = 8,
                               .initializer_range = 0.3});
  config.residual_dropout = dropout;
  return config;
}

struct Case {
  std::string name;
  ModelSpec model;
};

std::vector<Case> cases() {
  auto post = one_layer("bloom");
  post.residual_post_layernorm = true;
  auto gpt2 = one_layer("gpt2");
  gpt2.max_positions = kLength;
  LoraRule rule;
  rule.target_modules = {"all-linear"};
  LoraRule dropping = rule;
  dropping.dropout = 0.3;
  return {{"BLOOM", causal(one_layer("bloom"))},
          {"BLOOM, dropout", causal(one_layer("bloom", 0.2))},
          {"BLOOM, post", causal(post)},
          {"GPT-2", causal(gpt2)},
          {"Llama", causal(one_layer("llama"))},
          {"Qwen3", causal(one_layer("qwen3"))},
          {"adapted", add_lora(causal(one_layer("llama")), rule)},
          {"adapted, dropout", add_lora(causal(one_layer("bloom")), dropping)}};
}

struct Layer {
  std::unique_ptr<Block> block;
  std::vector<Parameter> parameters;
  MicroBatch batch;
  BlockContext context{.seed = 7, .training = true, .fused_layers = true};

  Layer(const ModelSpec& model, at::ScalarType dtype) : block(model.blocks[1].build({.seed = 3})) {
    parameters = block->parameters();
    for (Parameter& parameter : parameters) {
      const bool trained = parameter.tensor.requires_grad();
      parameter.tensor.set_data(parameter.tensor.detach().to(dtype));
      parameter.tensor.set_requires_grad(trained);
      if (trained) parameter.tensor.mutable_grad() = at::full_like(parameter.tensor, 0.5);
    }
    const at::Tensor ids = at::arange(kRows * kLength).remainder(kVocabulary);
    batch = make_micro_batch(ids.view({kRows, kLength}), ids.view({kRows, kLength}));
  }
  std::vector<at::Tensor> gradients() const {
    std::vector<at::Tensor> all;
    for (const Parameter& parameter : parameters) {
      if (parameter.tensor.requires_grad()) all.push_back(parameter.tensor.grad().clone());
    }
    return all;
  }
};

at::Tensor slope(const at::Tensor& output) {
  return at::linspace(-1, 1, output.numel(), output.options()).view_as(output);
}

void check_equal(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  REQUIRE(a.size() == b.size());
  for (size_t i = 0; i < a.size(); ++i) CHECK(a[i].equal(b[i]));
}

}  // namespace

TEST_CASE("weight gradients that come later have the same bits, and the input's comes first") {
  for (const Case& c : cases()) {
    for (const bool keep : {false, true}) {
      INFO(c.name << (keep ? ", kept" : ""));
      const at::Tensor hidden =
          at::linspace(-2, 1, kRows * kLength * kHidden).sin().view({kRows, kLength, kHidden});
      Layer whole(c.model, at::kFloat), split(c.model, at::kFloat);
      whole.context.save_norm_outputs = split.context.save_norm_outputs = keep;
      const at::Tensor whole_input = leaf(hidden), split_input = leaf(hidden);
      at::Tensor output = whole.block->forward(whole_input, whole.batch, whole.context);
      torch::autograd::backward({output}, {slope(output)});

      CHECK(split.block->defers_gradients(split_input, split.context));
      const auto deferred = std::make_shared<DeferredGradients>();
      split.context.deferred_gradients = deferred;
      const auto before = split.gradients();
      output = split.block->forward(split_input, split.batch, split.context);
      CHECK(deferred->promised());
      torch::autograd::backward({output}, {slope(output)});
      CHECK(split_input.grad().equal(whole_input.grad()));
      check_equal(split.gradients(), before);
      // A strategy may have resharded the weights by then.
      for (Parameter& parameter : split.parameters) {
        parameter.tensor.detach().fill_(std::numeric_limits<double>::quiet_NaN());
      }
      deferred->run();
      check_equal(split.gradients(), whole.gradients());
      deferred->run();  // nothing left to do
      check_equal(split.gradients(), whole.gradients());
    }
  }
}

TEST_CASE("what weight gradients need is kept until they are made, and no longer") {
  CountingAllocator counting;
  const ModelSpec model = causal(one_layer("llama"));
  Layer layer(model, at::kFloat);
  const at::Tensor input = leaf(at::ones({kRows, kLength, kHidden}));
  const auto step = [&] {
    const auto deferred = std::make_shared<DeferredGradients>();
    layer.context.deferred_gradients = deferred;
    input.mutable_grad().reset();
    at::Tensor output = layer.block->forward(input, layer.batch, layer.context);
    torch::autograd::backward({output}, {slope(output)});
    output.reset();
    layer.context.deferred_gradients.reset();
    const int64_t held = CountingAllocator::live_bytes();
    deferred->run();
    return held - CountingAllocator::live_bytes();
  };
  step();  // the position tables stay
  const int64_t begin = CountingAllocator::live_bytes();
  const int64_t width = 24, keys = 8, inner = 40;
  // Inputs and output gradients of qkv, dense, up (gate and up) and down.
  const int64_t columns =
      kHidden + (width + 2 * keys) + width + kHidden + kHidden + 2 * inner + inner + kHidden;
  const int64_t norms = 2 * kHidden;  // column sums
  CHECK(step() == 4 * (kRows * kLength * columns + norms));
  CHECK(CountingAllocator::live_bytes() == begin);
}

TEST_CASE("a layer whose weights autograd sees, or which is not fused, promises nothing") {
  const ModelSpec model = causal(one_layer("llama"));
  const at::Tensor hidden = at::ones({kRows, kLength, kHidden});
  const auto promised = [&](Layer& layer, const at::Tensor& input) {
    layer.context.deferred_gradients = std::make_shared<DeferredGradients>();
    layer.block->forward(input, layer.batch, layer.context);
    return layer.context.deferred_gradients->promised();
  };
  Layer layer(model, at::kFloat);
  CHECK(promised(layer, leaf(hidden)));
  CHECK_FALSE(promised(layer, hidden));  // only gradients of weights
  {
    const at::NoGradGuard no_grad;
    CHECK_FALSE(promised(layer, leaf(hidden)));
  }
  layer.batch.attention_mask = at::ones({kRows, kLength}, at::kBool);
  CHECK_FALSE(promised(layer, leaf(hidden)));
  CHECK(layer.block->defers_gradients(hidden, layer.context));  // whatever one micro-batch does
  layer.context.fused_layers = false;
  CHECK_FALSE(layer.block->defers_gradients(hidden, layer.context));
}
