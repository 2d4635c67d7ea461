// SPDX-License-Identifier: MIT
// LoRA adapters of experts against W + scale B A of every expert, token by token.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "lib/model/expert_names.h"
#include "lib/models/expert_feed_forward.h"
#include "lib/ops/random.h"
#include "tessera/core/error.h"
#include "tessera/model/lora.h"
#include "tessera/model/whole_model.h"
#include "tessera/models/language_model.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr int64_t kHidden = 6, kInner = 5, kExperts = 4, kUsed = 2, kRank = 2;
constexpr double kScale = 0.7;

// The inputs: x, router, up, down; A and B of gate, of up, and of down.
Tensors inputs_of(bool joint) {
  const auto each = [](int64_t out, int64_t in) { return at::randn({kExperts, out, in}); };
  Tensors made{at::randn({3, 5, kHidden}), 2 * at::randn({kExperts, kHidden}),
               each(2 * kInner, kHidden), each(kHidden, kInner)};
  for (int part = 0; part < (joint ? 1 : 2); ++part) {
    made.push_back(each(kRank, kHidden));
    made.push_back(each(joint ? 2 * kInner : kInner, kRank));
  }
  made.push_back(each(kRank, kInner));
  made.push_back(each(kHidden, kRank));
  return made;
}

DecoderBlockOptions options_of(double dropout) {
  DecoderBlockOptions options;
  options.gated = true;
  options.routing.experts_per_token = kUsed;
  options.adapters = {.scale = kScale, .dropout = dropout, .seed = 9};
  return options;
}

at::Tensor by_experts(const Tensors& x, bool joint, double dropout) {
  DecoderBlockWeights w;
  w.experts = {x[1], x[2], x[3]};
  w.experts.up_adapters = {LoraWeights{x[4], x[5]}};
  if (!joint) w.experts.up_adapters.push_back({x[6], x[7]});
  w.experts.down_adapters = {LoraWeights{x[x.size() - 2], x[x.size() - 1]}};
  return tessera::detail::experts(x[0], w, options_of(dropout));
}

// Factors of the adapter at this place, [tokens, used, width].
at::Tensor factors(size_t place, int64_t width, double dropout) {
  if (dropout == 0) return at::ones({15, kUsed, width}, at::kDouble);
  return ops::dropout_factors({3, 5, kUsed * width}, at::kFloat,
                              ops::Dropout{dropout, block_seed(9, place)}, at::kCPU)
      .to(at::kDouble)
      .view({15, kUsed, width});
}

at::Tensor by_tokens(const Tensors& x, bool joint, double dropout) {
  const at::Tensor tokens = x[0].flatten(0, 1), probabilities = tokens.mm(x[1].t()).softmax(-1);
  const at::Tensor of_gate = factors(4, kHidden, dropout), of_up = factors(5, kHidden, dropout),
                   of_down = factors(6, kInner, dropout);
  const auto adapted = [](const at::Tensor& input, const at::Tensor& dropped, const at::Tensor& w,
                          const at::Tensor& a, const at::Tensor& b) {
    return w.mv(input) + kScale * b.mv(a.mv(dropped));
  };
  std::vector<at::Tensor> rows;
  for (int64_t token = 0; token < tokens.size(0); ++token) {
    const auto [weights, chosen] = probabilities[token].topk(kUsed);
    at::Tensor sum = at::zeros({kHidden}, at::kDouble);
    for (int64_t i = 0; i < kUsed; ++i) {
      const auto e = chosen[i].item<int64_t>();
      const at::Tensor t = tokens[token], gate_x = t * of_gate[token][i],
                       up_x = t * of_up[token][i];
      const auto up = x[2][e].chunk(2);
      at::Tensor gate, other;
      if (joint) {
        const auto both = adapted(t, gate_x, x[2][e], x[4][e], x[5][e]).chunk(2);
        gate = both[0], other = both[1];
      } else {
        gate = adapted(t, gate_x, up[0], x[4][e], x[5][e]);
        other = adapted(t, up_x, up[1], x[6][e], x[7][e]);
      }
      const at::Tensor active = at::silu(gate) * other * weights[i];
      sum = sum + adapted(active, active * of_down[token][i], x[3][e], x[x.size() - 2][e],
                          x[x.size() - 1][e]);
    }
    rows.push_back(sum);
  }
  return at::stack(rows).view({3, 5, kHidden});
}

ModelSpec adapted_base(const char* family = "qwen3_moe") {
  DecoderConfig config = LanguageModel::defaults(family);
  config.vocabulary = 32, config.hidden = 16, config.layers = 2, config.heads = 4;
  config.experts = 4;
  if (std::string_view(family) == "qwen3_moe") config.dense_layers = {1};
  return LanguageModel(config).make_causal();
}

std::map<std::string, at::Tensor> trained(const ModelSpec& model) {
  std::map<std::string, at::Tensor> values;
  WholeModel whole(model, {.seed = 3});
  for (const auto& parameter : whole.parameters()) {
    if (parameter.tensor.requires_grad()) values[parameter.name] = parameter.tensor;
  }
  return values;
}

}  // namespace

TEST_CASE("an expert's adapters add their product to its matrices, with every gradient") {
  at::manual_seed(8);
  for (const bool joint : {false, true}) {
    for (const double dropout : {0.0, 0.4}) {
      INFO("joint " << joint << " dropout " << dropout);
      check_gradients(
          inputs_of(joint), [&](const Tensors& x) { return by_experts(x, joint, dropout); },
          [&](const Tensors& x) { return by_tokens(x, joint, dropout); }, 1e-5);
    }
  }
}

TEST_CASE("frozen experts get no gradient, their adapters do") {
  at::manual_seed(9);
  Tensors all = inputs_of(/*joint=*/false);
  for (at::Tensor& x : all) x = leaf(x);
  torch::autograd::backward({by_experts(all, false, 0).sum()});
  Tensors some;
  for (size_t i = 0; i < all.size(); ++i) {
    some.push_back(leaf(all[i]).set_requires_grad(i == 0 || i > 3));
  }
  torch::autograd::backward({by_experts(some, false, 0).sum()});
  for (size_t i = 0; i < all.size(); ++i) {
    INFO("input " << i);
    CHECK(some[i].grad().defined() == (i == 0 || i > 3));
    if (some[i].grad().defined()) CHECK(some[i].grad().equal(all[i].grad()));
  }
}

TEST_CASE("targets name the experts' linear layers, all-linear has them too") {
  const auto names = [](std::vector<std::string> targets) {
    std::vector<std::string> made;
    for (const auto& [name, value] :
         trained(add_lora(adapted_base(), {.r = 2, .target_modules = std::move(targets)}))) {
      if (name.find(".0.") != std::string::npos) made.push_back(name);
    }
    return made;
  };
  const std::string experts = "base_model.model.model.layers.0.mlp.experts.";
  CHECK(names({"gate_proj"}) == std::vector<std::string>{experts + "gate_proj.lora_A.weight",
                                                         experts + "gate_proj.lora_B.weight"});
  CHECK(names({"experts.down_proj"}) ==
        std::vector<std::string>{experts + "down_proj.lora_A.weight",
                                 experts + "down_proj.lora_B.weight"});
  CHECK(names({"all-linear"}).size() == 2 * (4 + 3));
  CHECK_THROWS_WITH(add_lora(adapted_base(), {.target_modules = {"gate_prj"}}),
                    Catch::Contains("gate_proj"));
}

TEST_CASE("target parameters name tensors of all experts, with peft's names of nested wrappers") {
  const auto shapes = [](ModelSpec model, LoraRule rule) {
    std::map<std::string, std::vector<int64_t>> made;
    for (const auto& [name, value] : trained(add_lora(std::move(model), std::move(rule)))) {
      if (name.find(".0.") != std::string::npos) made[name] = value.sizes().vec();
    }
    return made;
  };
  const std::string layer = "base_model.model.model.layers.0.", experts = layer + "mlp.experts.";
  const std::string up = "mlp.experts.gate_up_proj", down = "experts.down_proj";
  using Shapes = std::map<std::string, std::vector<int64_t>>;
  const LoraRule both{.r = 2, .target_parameters = {up, down}};
  for (const char* family : {"gpt_oss", "qwen3_moe", "mixtral"}) {
    INFO(family);
    const ModelSpec model = adapted_base(family);
    CHECK(shapes(model, both) == Shapes{{experts + "base_layer.lora_A.weight", {4, 2, 16}},
                                        {experts + "base_layer.lora_B.weight", {4, 64, 2}},
                                        {experts + "lora_A.weight", {4, 2, 32}},
                                        {experts + "lora_B.weight", {4, 16, 2}}});
    CHECK(shapes(model, {.r = 2, .target_parameters = {down}}) ==
          Shapes{{experts + "lora_A.weight", {4, 2, 32}}, {experts + "lora_B.weight", {4, 16, 2}}});
    CHECK(shapes(model, {.r = 2, .target_parameters = {up}}) ==
          Shapes{{experts + "lora_A.weight", {4, 2, 16}}, {experts + "lora_B.weight", {4, 64, 2}}});
    // Layers beside them; all-linear means no expert's own.
    CHECK(shapes(model, {.r = 2, .target_modules = {"all-linear"}, .target_parameters = {down}})
              .size() == 2 + 2 * 4);
    CHECK_THROWS_WITH(
        add_lora(model, {.target_parameters = {"experts.w9"}}),
        Catch::Contains("matches nothing; the model has mlp.experts.down_proj, " + up));
    CHECK_THROWS_WITH(add_lora(model, {.target_parameters = {"q_proj.weight"}}),
                      Catch::Contains("adds no adapter"));
    CHECK_THROWS_WITH(add_lora(model, {.dropout = 0.1, .target_parameters = {down}}),
                      Catch::Contains("--lora_dropout 0"));
    CHECK_THROWS_WITH(add_lora(model, {.target_modules = {"experts"}, .target_parameters = {down}}),
                      Catch::Contains("adds no adapter"));
  }
  CHECK_THROWS_WITH(add_lora(adapted_base("gpt_oss"), {.target_modules = {"gate_up_proj"}}),
                    Catch::Contains("--lora_target_parameters gate_up_proj"));
  CHECK_THROWS_WITH(add_lora(adapted_base(),
                             {.target_modules = {"experts.gate_proj"}, .target_parameters = {up}}),
                    Catch::Contains("matches nothing"));
}

TEST_CASE("every expert's A is drawn by itself, as that of a module of its name") {
  const ModelSpec model = add_lora(adapted_base(), {.r = 2, .target_modules = {"up_proj"}});
  const at::Tensor a =
      trained(model).at("base_model.model.model.layers.0.mlp.experts.up_proj.lora_A.weight");
  REQUIRE(a.dim() == 3);
  const LoraRule rule{.r = 2, .target_modules = {"up_proj"}};
  for (int64_t expert = 0; expert < a.size(0); ++expert) {
    const std::string module = concat("model.layers.0.mlp.experts.", expert, ".up_proj");
    const BuildContext context{.seed = 3, .lora = std::make_shared<const LoraRule>(rule)};
    CHECK(a[expert].equal(lora_matrices(context, 1, module, 32, 16).a));
  }
}

TEST_CASE("names of experts' layers, with and without the expert's number") {
  CHECK(layers_of_experts("model.layers.1.mlp.experts.gate_up_proj") ==
        std::vector<std::string>{"model.layers.1.mlp.experts.gate_proj",
                                 "model.layers.1.mlp.experts.up_proj"});
  CHECK(layers_of_experts("a.block_sparse_moe.experts.down_proj") ==
        std::vector<std::string>{"a.block_sparse_moe.experts.w2"});
  CHECK(layers_of_experts("a.mlp.down_proj").empty());
  CHECK(layers_of_experts("a.experts.up_proj").empty());
  CHECK(name_of_expert("a.experts.up_proj.lora_A.weight", 12) ==
        "a.experts.12.up_proj.lora_A.weight");
  CHECK(name_of_expert("a.mlp.up_proj", 1) == "a.mlp.up_proj");
  for (const char* name : {"a.experts.up_proj", "a.mlp.up_proj", "a.experts.3"}) {
    CHECK(without_expert(name) == name);
  }
  CHECK(without_expert("a.experts.120.w1.lora_B.weight") == "a.experts.w1.lora_B.weight");
}
