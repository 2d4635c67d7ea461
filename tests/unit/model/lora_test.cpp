// SPDX-License-Identifier: MIT
#include "tessera/model/lora.h"

#include <ATen/ATen.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cmath>

#include "tessera/core/error.h"
#include "tessera/model/adapters.h"
#include "tessera/model/whole_model.h"
#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"
#include "tests/support/torch_modules.hpp"

using namespace tessera;
using namespace tessera::test;
using namespace tessera::testing;
namespace nn = torch::nn;

namespace {

struct Inner : nn::Cloneable<Inner> {
  Inner() { reset(); }
  void reset() override {
    q_proj = register_module("q_proj", nn::Linear(3, 5));
    v_proj = register_module("v_proj", nn::Linear(5, 4));
  }
  at::Tensor forward(const at::Tensor& x) { return v_proj(at::tanh(q_proj(x))); }
  nn::Linear q_proj{nullptr}, v_proj{nullptr};
};
struct Outer : nn::Cloneable<Outer> {
  Outer() { reset(); }
  void reset() override {
    layer = register_module("layer", std::make_shared<Inner>());
    head = register_module("head", nn::Linear(4, 2));
  }
  at::Tensor forward(const at::Tensor& x) { return head(layer->forward(x)); }
  std::shared_ptr<Inner> layer;
  nn::Linear head{nullptr};
};

ModelSpec outer() {
  return from_module([] { return std::make_shared<Outer>(); }, squared_error);
}
MicroBatch lora_batch() {
  return make_micro_batch(at::arange(12, at::kFloat).reshape({4, 3}) / 10, at::ones({4, 2}));
}
LoraRule rule_of(std::vector<std::string> targets, std::vector<std::string> saved = {}) {
  LoraRule rule;
  rule.r = 2;
  rule.alpha = 3;
  rule.target_modules = std::move(targets);
  rule.modules_to_save = std::move(saved);
  return rule;
}
std::string refusal(const ModelSpec& model, const LoraRule& rule) {
  return error_of(ErrorCode::kInvalidArgument, [&] { add_lora(model, rule); });
}
const Parameter& named(const WholeModel& model, const std::string& name) {
  for (const Parameter& parameter : model.parameters()) {
    if (parameter.name == name) return parameter;
  }
  fail(ErrorCode::kInternal, "no parameter ", name);
}

}  // namespace

TEST_CASE("targets are names of modules or their ends behind a dot, as PEFT matches them") {
  const LoraRule rule = rule_of({"q_proj", "h.0.dense", "score"}, {"norm", "lm_head"});
  CHECK(rule.targets("model.layers.0.self_attn.q_proj"));
  CHECK(rule.targets("q_proj"));
  CHECK(rule.targets("transformer.h.0.dense"));
  CHECK(rule.targets("h.0.dense"));
  CHECK_FALSE(rule.targets("model.my_q_proj"));
  CHECK_FALSE(rule.targets("q_proj.inner"));
  CHECK_FALSE(rule.targets("transformer.h.10.dense"));
  CHECK(rule_of({"all-linear"}).targets("anything"));
  // Trained in full: modules whose name ends so, also without a dot, and everything inside.
  CHECK(rule.saves("model.layers.0.input_layernorm.weight"));
  CHECK(rule.saves("lm_head"));
  CHECK(rule.saves("lm_head.inner.weight"));
  CHECK_FALSE(rule.saves("model.norms.weight"));
  CHECK_FALSE(rule_of({"lm_head"}, {"lm_head"}).targets("lm_head"));
  CHECK(rule.scale() == 1.5);
  LoraRule stabilised = rule;
  stabilised.use_rslora = true;
  CHECK(stabilised.scale() == Approx(3 / std::sqrt(2.0)));
}

TEST_CASE("a module with adapters computes with W + s B A and trains them alone") {
  const ModelSpec model = add_lora(outer(), rule_of({"q_proj", "head"}));
  WholeModel whole(model, {.seed = 3});
  std::vector<std::string> trained;
  for (const Parameter& parameter : whole.parameters()) {
    if (parameter.tensor.requires_grad()) trained.push_back(parameter.name);
  }
  CHECK(trained == std::vector<std::string>{"base_model.model.layer.q_proj.lora_A.weight",
                                            "base_model.model.layer.q_proj.lora_B.weight",
                                            "base_model.model.head.lora_A.weight",
                                            "base_model.model.head.lora_B.weight"});
  const at::Tensor a = named(whole, trained[0]).tensor, b = named(whole, trained[1]).tensor;
  const at::Tensor c = named(whole, trained[2]).tensor, d = named(whole, trained[3]).tensor;
  CHECK(a.sizes() == at::IntArrayRef{2, 3});
  CHECK(d.sizes() == at::IntArrayRef{2, 2});
  CHECK(a.abs().max().item<double>() <= 1 / std::sqrt(3.0));
  CHECK(b.count_nonzero().item<int64_t>() == 0);

  // The base is drawn as without adapters, and B = 0 changes nothing.
  WholeModel plain(outer(), {.seed = 3});
  for (const Parameter& parameter : plain.parameters()) {
    CHECK(at::equal(parameter.tensor, named(whole, parameter.name).tensor));
  }
  const MicroBatch batch = lora_batch();
  CHECK(at::equal(whole.forward(batch), plain.forward(batch)));

  {
    const at::NoGradGuard no_grad;
    b.normal_(0, 0.3);
    d.normal_(0, 0.3);
  }
  const auto layer = [&](const at::Tensor& x, const char* name, const at::Tensor& down,
                         const at::Tensor& up) {
    const at::Tensor weight = named(plain, concat(name, ".weight")).tensor.detach();
    const at::Tensor bias = named(plain, concat(name, ".bias")).tensor.detach();
    const at::Tensor base = at::linear(x, weight, bias);
    return down.defined() ? base + 1.5 * at::linear(at::linear(x, down), up) : base;
  };
  std::vector<at::Tensor> leaves;
  for (const at::Tensor& tensor : {a, b, c, d}) {
    leaves.push_back(tensor.detach().clone().set_requires_grad(true));
  }
  at::Tensor x = at::tanh(layer(batch.input_ids, "layer.q_proj", leaves[0], leaves[1]));
  x = layer(layer(x, "layer.v_proj", {}, {}), "head", leaves[2], leaves[3]);
  const at::Tensor expected = squared_error(x, batch), loss = whole.forward(batch)[0];
  CHECK(at::allclose(loss, expected, 1e-6));
  expected.backward();
  loss.backward();
  for (size_t i = 0; i < 4; ++i) {
    CHECK(at::allclose(named(whole, trained[i]).tensor.grad(), leaves[i].grad(), 1e-5, 1e-6));
  }
  CHECK_FALSE(named(whole, "layer.q_proj.weight").tensor.grad().defined());
}

TEST_CASE("modules to save are trained in full, under PEFT's names") {
  const ModelSpec model = add_lora(outer(), rule_of({"all-linear"}, {"head"}));
  WholeModel whole(model, {});
  CHECK(named(whole, "base_model.model.head.weight").tensor.requires_grad());
  CHECK(named(whole, "base_model.model.head.bias").tensor.requires_grad());
  CHECK_FALSE(named(whole, "layer.v_proj.weight").tensor.requires_grad());
  CHECK(whole.parameters().size() == 6 + 4);
}

TEST_CASE("adapters are drawn by LoRA's own stream") {
  LoraRule rule = rule_of({"q_proj", "v_proj"});
  const auto drawn = [&](uint64_t seed, const std::string& module, size_t block = 1) {
    BuildContext context{.seed = seed};
    context.lora = std::make_shared<const LoraRule>(rule);
    return lora_matrices(context, block, module, 40, 400).a;
  };
  CHECK(at::equal(drawn(1, "q_proj"), drawn(1, "q_proj")));
  CHECK_FALSE(at::equal(drawn(1, "q_proj"), drawn(2, "q_proj")));
  CHECK_FALSE(at::equal(drawn(1, "q_proj"), drawn(1, "v_proj")));
  CHECK_FALSE(at::equal(drawn(1, "q_proj"), drawn(1, "q_proj", 2)));
  CHECK(drawn(1, "q_proj").abs().max().item<double>() == Approx(0.05).epsilon(0.02));
  rule.init = LoraInit::kGaussian;
  CHECK(drawn(1, "q_proj").std().item<double>() == Approx(0.5).epsilon(0.1));
}

TEST_CASE("a target that no module answers to is refused by name") {
  CHECK_THAT(refusal(outer(), rule_of({"q_prj"})),
             contains("\"q_prj\" matches nothing; the nearest is q_proj"));
  CHECK_THAT(refusal(outer(), rule_of({"layer.q_pro"})), contains("matches nothing"));
  CHECK_THAT(refusal(outer(), rule_of({"attention"})),
             contains("the model has head, q_proj, v_proj"));
  CHECK_THAT(refusal(outer(), rule_of({"q_proj"}, {"haed"})), contains("the nearest is head"));
  CHECK_THAT(refusal(outer(), rule_of({})), contains("name them, or all-linear"));
  CHECK_THAT(refusal(outer(), rule_of({"all-linear", "q_proj"})), contains("stands alone"));
  LoraRule rule = rule_of({"q_proj"});
  rule.r = 0;
  CHECK_THAT(refusal(outer(), rule), contains("at least 1"));
  rule = rule_of({"q_proj"});
  rule.dropout = 0.1;
  CHECK_THAT(refusal(outer(), rule), contains("module layer.q_proj"));
  CHECK_THAT(refusal(add_lora(outer(), rule_of({"q_proj"})), rule_of({"v_proj"})),
             contains("add them once"));
}

TEST_CASE("tied tables have no adapters") {
  nn::Sequential sequential(nn::Embedding(7, 3), nn::Linear(3, 3),
                            nn::Linear(nn::LinearOptions(3, 7).bias(false)));
  sequential->ptr(2)->as<nn::Linear>()->weight = sequential->ptr(0)->as<nn::Embedding>()->weight;
  const ModelSpec model = from_sequential(
      sequential,
      [](const at::Tensor& scores, const MicroBatch&) { return scores.square().sum(); });
  WholeModel whole(add_lora(model, rule_of({"all-linear"})), {});
  std::vector<std::string> trained;
  for (const Parameter& parameter : whole.parameters()) {
    if (parameter.tensor.requires_grad()) trained.push_back(parameter.name);
  }
  CHECK(trained == std::vector<std::string>{"base_model.model.1.lora_A.weight",
                                            "base_model.model.1.lora_B.weight"});
  CHECK_THAT(refusal(model, rule_of({"2"})), contains("tied"));
  CHECK_THAT(refusal(model, rule_of({"0"})), contains("tied"));
  CHECK_THAT(refusal(model, rule_of({"1"}, {"0"})), contains("tied"));
}
