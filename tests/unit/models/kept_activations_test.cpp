// SPDX-License-Identifier: MIT
// BlockContext::save_norm_outputs: hand-scheduled blocks save or recompute norm and activation
// outputs, with equal gradients. BlockContext::recompute_experts: likewise experts' activations.
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "tessera/model/lora.h"
#include "tests/support/counting_allocator.h"
#include "tests/support/plain_models.h"
#include "tests/support/sized.h"
#include "tests/unit/models/decoder_cases.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kRows = 2, kLength = 9, kHidden = 24, kInner = 40;

DecoderConfig narrow(const std::string& family) {
  return sized(family, {.vocabulary = 19,
                        .hidden = kHidden,
                        .heads = 3,
                        .layers = 1,
                        .inner = kInner,
                        .key_heads = 1,
                        .head_dim = 8,
                        .initializer_range = 0.3});
}

struct Case {
  std::string name;
  ModelSpec model;
  int64_t inner;     // columns of the activation function's output
  bool same = true;  // recomputed bits equal forward's
};

std::vector<Case> cases() {
  auto bloom = narrow("bloom");
  bloom.residual_dropout = 0.2;
  auto post = narrow("bloom");
  post.residual_post_layernorm = true;
  auto gpt2 = narrow("gpt2");
  gpt2.max_positions = kLength;
  const auto llama = narrow("llama");
  // Recomputed layer norms differ in the last bits.
  return {{"BLOOM", causal(bloom), 4 * kHidden, false},
          {"BLOOM, post", causal(post), 4 * kHidden, false},
          {"GPT-2", causal(gpt2), kInner, false},
          {"Llama", causal(llama), kInner, true}};
}

struct Result {
  at::Tensor output;
  Tensors gradients;  // of hidden and of the parameters
  int64_t kept = 0;   // bytes between forward and backward
};

Result run(const ModelSpec& model, const at::Tensor& hidden, const BlockContext& context) {
  const auto block = model.blocks[1].build({.seed = 3});
  std::vector<Parameter> parameters = block->parameters();
  for (Parameter& parameter : parameters) {
    parameter.tensor.set_data(parameter.tensor.detach().to(hidden.scalar_type()));
    if (parameter.tensor.requires_grad()) {
      parameter.tensor.mutable_grad() = at::zeros_like(parameter.tensor);
    }
  }
  const at::Tensor ids = at::arange(kRows * kLength).remainder(19).view({kRows, kLength});
  const MicroBatch batch = make_micro_batch(ids, ids);
  const at::Tensor input = leaf(hidden);
  const at::NoGradGuard no_grad;
  block->forward(input, batch, context);  // what a block makes once
  const at::AutoGradMode gradients(context.training);
  Result result;
  const int64_t before = CountingAllocator::live_bytes();
  result.output = block->forward(input, batch, context);
  result.kept = CountingAllocator::live_bytes() - before;
  if (!context.training) return result;
  torch::autograd::backward(
      {result.output},
      {at::linspace(-1, 1, hidden.numel(), hidden.options()).view_as(result.output)});
  result.gradients.push_back(input.grad());
  for (const Parameter& parameter : parameters) result.gradients.push_back(parameter.tensor.grad());
  return result;
}

Result run(const ModelSpec& model, const at::Tensor& hidden, bool keep, bool training = true) {
  return run(model, hidden,
             BlockContext{
                 .seed = 7, .training = training, .save_norm_outputs = keep, .fused_layers = true});
}

// Frozen weights have no gradients.
bool same(const at::Tensor& a, const at::Tensor& b) {
  return a.defined() == b.defined() && (!a.defined() || a.equal(b));
}

}  // namespace

TEST_CASE("a block that keeps activations has the gradients of one that forms them anew") {
  CountingAllocator counting;
  at::manual_seed(41);
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    for (const Case& test : cases()) {
      INFO(test.name << " " << at::toString(type));
      const at::Tensor hidden = at::randn({kRows, kLength, kHidden}).to(type);
      const Result anew = run(test.model, hidden, false), kept = run(test.model, hidden, true);
      CHECK(kept.output.equal(anew.output));
      const double tolerance = test.same ? 0 : type == at::kFloat ? 1e-6 : 1e-14;
      for (size_t i = 0; i < anew.gradients.size(); ++i) {
        INFO("gradient " << i);
        CHECK(relative_error(kept.gradients[i], anew.gradients[i]) <= tolerance);
      }
      // Outputs of two norms and the activation function.
      const int64_t columns = 2 * kHidden + test.inner;
      CHECK(kept.kept - anew.kept ==
            kRows * kLength * columns * static_cast<int64_t>(hidden.element_size()));
    }
  }
}

TEST_CASE("experts formed again have the bits of kept ones, and keep no gates and ups") {
  CountingAllocator counting;
  at::manual_seed(44);
  for (const std::string family : {"qwen3_moe", "olmoe", "mixtral", "gpt_oss"}) {
    DecoderConfig config = narrow(family);
    config.expert_inner = kInner, config.experts_per_token = 2;
    const ModelSpec base = causal(config);
    const ModelSpec adapted =
        family == "qwen3_moe"
            ? add_lora(base, {.r = 2, .dropout = 0.2, .target_modules = {"all-linear"}})
            : base;
    for (const ModelSpec& model : {base, adapted}) {
      for (const bool keep : {false, true}) {
        for (const bool fused : {false, true}) {
          INFO(family << ", keep " << keep << ", fused " << fused);
          BlockContext context{
              .seed = 7, .training = true, .save_norm_outputs = keep, .fused_layers = fused};
          const at::Tensor hidden = at::randn({kRows, kLength, kHidden});
          const Result kept = run(model, hidden, context);
          context.recompute_experts = true;
          const Result again = run(model, hidden, context);
          CHECK(again.output.equal(kept.output));
          for (size_t i = 0; i < kept.gradients.size(); ++i) {
            INFO("gradient " << i);
            CHECK(same(again.gradients[i], kept.gradients[i]));
          }
          const int64_t rows = kRows * kLength * config.experts_per_token;
          CHECK(kept.kept - again.kept >= rows * 2 * kInner * 4);
        }
      }
    }
  }
}

TEST_CASE("a block without gradients keeps no activations") {
  CountingAllocator counting;
  at::manual_seed(42);
  for (const Case& test : cases()) {
    INFO(test.name);
    const at::Tensor hidden = at::randn({kRows, kLength, kHidden});
    const Result anew = run(test.model, hidden, false, /*training=*/false),
                 kept = run(test.model, hidden, true, /*training=*/false);
    CHECK(kept.output.equal(anew.output));
    CHECK(kept.kept == anew.kept);
  }
}

TEST_CASE("blocks that keep activations are the composed ones, packed and with dropout") {
  at::manual_seed(43);
  const DecoderSizes sizes;
  const PackedRows packed = make_packed_rows({3, 4, 5, 1, 1}, 7);
  for (const DecoderCase& whole : decoder_cases(sizes)) {
    for (DecoderCase test : {whole, with_dropout(whole, /*attention=*/true)}) {
      test.options.save_norm_outputs = true;
      const at::Tensor hidden = at::randn({2, 7, sizes.hidden}, at::kDouble);
      std::vector<Tensors> gradients;
      for (const Version version : {Version::kFused, Version::kComposed}) {
        Tensors mine;
        for (const at::Tensor& w : test.tensors()) mine.push_back(leaf(w.to(at::kDouble)));
        const at::Tensor input = leaf(hidden);
        const at::Tensor output =
            run_decoder(version, input, test.with(mine), test.options, {}, {}, packed);
        torch::autograd::backward(
            {output}, {at::linspace(-1, 1, output.numel(), output.options()).view_as(output)});
        gradients.push_back({output.detach(), input.grad()});
        for (const at::Tensor& w : mine) gradients.back().push_back(w.grad());
      }
      for (size_t i = 0; i < gradients[0].size(); ++i) {
        INFO(test.name << ", tensor " << i);
        CHECK(relative_error(gradients[0][i], gradients[1][i]) < 1e-11);
      }
    }
  }
}
