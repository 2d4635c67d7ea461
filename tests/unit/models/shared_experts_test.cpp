// SPDX-License-Identifier: MIT
// Shared experts, and routing by sigmoids: values, gradients, and config.json of the families.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <tuple>

#include "lib/models/expert_feed_forward.h"
#include "tessera/core/error.h"
#include "tessera/model/lora.h"
#include "tessera/model/whole_model.h"
#include "tests/unit/models/config_text.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// As Qwen/Qwen1.5-MoE-A2.7B's.
constexpr const char* kQwen2Moe = R"({"architectures": ["Qwen2MoeForCausalLM"],
  "attention_dropout": 0.0, "bos_token_id": 80, "decoder_sparse_step": 1, "eos_token_id": 80,
  "hidden_act": "silu", "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 100,
  "max_position_embeddings": 8192, "max_window_layers": 3, "model_type": "qwen2_moe",
  "moe_intermediate_size": 20, "norm_topk_prob": false, "num_attention_heads": 6,
  "num_experts": 12, "num_experts_per_tok": 4, "num_hidden_layers": 4,
  "num_key_value_heads": 6, "output_router_logits": false, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 60,
  "sliding_window": 32768, "tie_word_embeddings": false, "use_sliding_window": false,
  "vocab_size": 99})";
// As zai-org/GLM-4.5-Air's.
constexpr const char* kGlm4Moe = R"({"architectures": ["Glm4MoeForCausalLM"],
  "attention_bias": true, "attention_dropout": 0.0, "eos_token_id": [90, 91, 92],
  "first_k_dense_replace": 1, "head_dim": 8, "hidden_act": "silu", "hidden_size": 48,
  "initializer_range": 0.02, "intermediate_size": 100, "max_position_embeddings": 131072,
  "model_type": "glm4_moe", "moe_intermediate_size": 20, "n_group": 1, "n_routed_experts": 12,
  "n_shared_experts": 2, "norm_topk_prob": true, "num_attention_heads": 12,
  "num_experts_per_tok": 4, "num_hidden_layers": 4, "num_key_value_heads": 4,
  "num_nextn_predict_layers": 1, "pad_token_id": 90, "partial_rotary_factor": 0.5,
  "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 1000000,
  "routed_scaling_factor": 1.5, "tie_word_embeddings": false, "topk_group": 1,
  "use_qk_norm": false, "vocab_size": 99})";

std::string with_key(const char* text, const std::string& addition) {
  return replaced(text, "\"vocab_size\"", addition + ", \"vocab_size\"");
}

DecoderConfig small_model(const std::string& family) {
  DecoderConfig config = LanguageModel::defaults(family);
  config.vocabulary = 32, config.hidden = 16, config.layers = 3, config.heads = 4;
  return config;
}

}  // namespace

TEST_CASE("routing by sigmoids: a bias chooses and does not weigh, with the gradient of scores") {
  at::manual_seed(6);
  const int64_t h = 6, inner = 5, experts = 7;
  for (const bool normalised : {false, true}) {
    DecoderBlockOptions options;
    options.gated = true;
    options.routing = {3, normalised, /*sigmoid=*/true, 1.5, at::randn({experts})};
    const Tensors inputs{at::randn({3, 5, h}), 2 * at::randn({experts, h}),
                         at::randn({experts, 2 * inner, h}), at::randn({experts, h, inner})};
    const at::Tensor scores = inputs[0].flatten(0, 1).mm(inputs[1].t()).sigmoid();
    const ops::Routing routing = ops::route(scores.logit(), options.routing);
    const at::Tensor chosen = std::get<1>((scores + options.routing.bias).topk(3));
    CHECK(at::equal(routing.experts, chosen));
    CHECK_FALSE(at::equal(chosen, std::get<1>(scores.topk(3))));
    check_gradients(
        inputs,
        [&](const Tensors& x) {
          DecoderBlockWeights w;
          w.experts = {x[1], x[2], x[3]};
          return tessera::detail::experts(x[0], w, options);
        },
        [&](const Tensors& x) {
          const at::Tensor tokens = x[0].flatten(0, 1);
          const at::Tensor all = tokens.mm(x[1].t()).sigmoid();
          std::vector<at::Tensor> rows;
          for (int64_t token = 0; token < tokens.size(0); ++token) {
            at::Tensor weights = all[token].index_select(0, chosen[token]);
            if (normalised) weights = weights / weights.sum();
            at::Tensor sum = at::zeros({h}, at::kDouble);
            for (int64_t i = 0; i < 3; ++i) {
              const int64_t e = chosen[token][i].item<int64_t>();
              const auto parts = x[2][e].mv(tokens[token]).chunk(2);
              sum = sum + 1.5 * weights[i] * x[3][e].mv(at::silu(parts[0]) * parts[1]);
            }
            rows.push_back(sum);
          }
          return at::stack(rows).view({3, 5, h});
        },
        1e-5);
  }
}

TEST_CASE("shared experts: the hand-scheduled layer has the composed one's gradients") {
  for (const std::string family : {"qwen2_moe", "glm4_moe"}) {
    for (const bool adapted : {false, true}) {
      const DecoderConfig config = small_model(family);
      ModelSpec spec = LanguageModel(config).make_causal();
      if (adapted) {
        spec = add_lora(spec, {.r = 2, .dropout = 0.3, .target_modules = {"all-linear"}});
      }
      std::vector<std::map<std::string, at::Tensor>> gradients(2);
      for (const bool fused : {false, true}) {
        WholeModel model(spec, {});
        at::manual_seed(3);
        const at::NoGradGuard no_grad;
        for (const auto& p : model.parameters()) p.tensor.add_(at::randn_like(p.tensor), 0.2);
        const at::AutoGradMode with_grad(true);
        const MicroBatch batch = make_micro_batch(at::randint(0, 32, {3, 5}, at::kLong),
                                                  at::randint(0, 32, {3, 5}, at::kLong));
        const at::Tensor output = model.forward(
            batch, {.loss_gradient = at::ones({}), .training = true, .fused_layers = fused});
        torch::autograd::backward({output[0]}, {at::ones({})});
        for (const auto& p : model.parameters()) gradients[fused][p.name] = p.tensor.grad();
      }
      size_t of_shared = 0;
      for (const auto& [name, composed] : gradients[0]) {
        INFO(family << " " << name);
        REQUIRE(gradients[1].at(name).defined() == composed.defined());
        if (!composed.defined()) continue;  // frozen beside adapters
        of_shared += name.find("shared_expert") != std::string::npos ? 1 : 0;
        CHECK(composed.abs().max().item<double>() > 0);
        CHECK(relative_error(gradients[1].at(name), composed) < 1e-4);
      }
      const size_t layers = family == "qwen2_moe" ? 3 : 2, linears = family == "qwen2_moe" ? 4 : 3;
      CHECK(of_shared == layers * linears * (adapted ? 2 : 1));
    }
  }
}

TEST_CASE("config.json of families with shared experts is read as transformers means it") {
  const DecoderConfig qwen = parse_config(kQwen2Moe);
  CHECK(qwen.query_key_value_bias);
  CHECK_FALSE(qwen.dense_bias);
  CHECK(qwen.shared_inner == 60);
  CHECK(qwen.shared_gate);
  CHECK_FALSE(qwen.sigmoid_routing);
  CHECK_FALSE(qwen.normalised_routing);
  CHECK(qwen.windows.empty());
  CHECK_FALSE(parse_config(with_key(kQwen2Moe, "\"qkv_bias\": false")).query_key_value_bias);
  // Every second layer below max_window_layers.
  CHECK(parse_config(replaced(kQwen2Moe, "window\": false", "window\": true")).windows ==
        std::vector<int64_t>{32'768, 0, 32'768, 0});

  const DecoderConfig glm = parse_config(kGlm4Moe);
  CHECK(glm.sigmoid_routing);
  CHECK(glm.normalised_routing);
  CHECK(glm.routing_scale == 1.5);
  CHECK(glm.shared_inner == 40);
  CHECK_FALSE(glm.shared_gate);
  CHECK(glm.dense_layers == std::vector<int64_t>{0});
  CHECK(glm.rotary_columns() == 4);
  CHECK(glm.query_key_value_bias);
  CHECK_FALSE(glm.query_key_norm);
  CHECK(glm.eos_token == 90);
  CHECK(parse_config(replaced(kGlm4Moe, "qk_norm\": false", "qk_norm\": true")).query_key_norm);
  CHECK(parse_config(replaced(kGlm4Moe, "replace\": 1", "replace\": 3")).dense_layers.size() == 3);
  // transformers' defaults.
  const std::string unsaid = replaced(kGlm4Moe, "\"partial_rotary_factor\": 0.5,", "");
  CHECK(parse_config(unsaid).rotary_share == 0.5);
  check_config_refused(replaced(kGlm4Moe, "n_group\": 1", "n_group\": 4"), "one group of experts");
  check_config_refused(replaced(kGlm4Moe, "factor\": 0.5", "factor\": 0.375"), "an even number");
  check_config_refused(with_key(kQwen2Moe, "\"partial_rotary_factor\": 0.5"), "rotated as a whole");
  DecoderConfig balanced = glm;
  balanced.router_aux_loss_coef = 0.1;
  CHECK_THROWS_WITH(balanced.validate(), Catch::Contains("not built for sigmoid routing"));
  // Parts of the shared expert are cut, too.
  DecoderConfig odd = small_model("qwen2_moe");
  odd.shared_inner = 33;
  CHECK_FALSE(tensor_parallel_problem(LanguageModel(odd).make_causal(), 2).empty());
}

TEST_CASE("what families with shared experts write reads back") {
  for (const DecoderConfig& config :
       {parse_config(kQwen2Moe), parse_config(kGlm4Moe),
        parse_config(replaced(kQwen2Moe, "window\": false", "window\": true")),
        parse_config(replaced(kQwen2Moe, "step\": 1", "step\": 2")),
        parse_config(replaced(kQwen2Moe, "logits\": false", "logits\": true")),
        parse_config(replaced(kGlm4Moe, "factor\": 0.5", "factor\": 0.25"))}) {
    INFO(config.model_type);
    const DecoderConfig again = parse_config(written(config, ModelHead::kCausal));
    CHECK(again.shared_inner == config.shared_inner);
    CHECK(again.routing_scale == config.routing_scale);
    CHECK(again.rotary_share == config.rotary_share);
    CHECK(again.dense_layers == config.dense_layers);
    CHECK(again.windows == config.windows);
    CHECK(again.router_aux_loss_coef == config.router_aux_loss_coef);
    CHECK(written(again, ModelHead::kCausal) == written(config, ModelHead::kCausal));
  }
  DecoderConfig between = parse_config(kGlm4Moe);
  between.dense_layers = {1};
  CHECK_THROWS_WITH(written(between, ModelHead::kCausal), Catch::Contains("the first ones"));
  between.dense_layers = {}, between.shared_inner = 30;
  CHECK_THROWS_WITH(written(between, ModelHead::kCausal), Catch::Contains("is no multiple"));
}

TEST_CASE("presets with shared experts have the published counts") {
  CHECK(published_parameters("qwen2_moe") == Counts{{"qwen1.5-moe-a2.7b", 14'315'784'192}});
  CHECK(published_parameters("glm4_moe") == Counts{{"glm-4.5-air", 106'852'245'504}});
  // 2.7 G active ones, as published, less the table looked up.
  CHECK(LanguageModel::preset("qwen1.5-moe-a2.7b").make_causal().flops_per_token(1) / 6 ==
        Approx(2.69e9 - 151'936 * 2048).epsilon(0.02));
}
