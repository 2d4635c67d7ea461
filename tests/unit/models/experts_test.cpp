// SPDX-License-Identifier: MIT
// Mixtures of experts: the feed-forward part, config.json of the families, and costs.
#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <map>

#include "lib/models/expert_feed_forward.h"
#include "tessera/core/error.h"
#include "tessera/model/lora.h"
#include "tessera/model/whole_model.h"
#include "tests/support/plain_experts.h"
#include "tests/support/sized.h"
#include "tests/unit/models/config_text.h"
#include "tests/unit/ops/gradients.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// The Hub's files with small sizes.
constexpr const char* kQwen3Moe = R"({"architectures": ["Qwen3MoeForCausalLM"],
  "attention_bias": false, "decoder_sparse_step": 1, "head_dim": 24, "hidden_act": "silu",
  "hidden_size": 48, "intermediate_size": 100, "max_window_layers": 48, "mlp_only_layers": [],
  "model_type": "qwen3_moe", "moe_intermediate_size": 20, "norm_topk_prob": true,
  "num_attention_heads": 6, "num_experts": 16, "num_experts_per_tok": 4, "num_hidden_layers": 4,
  "num_key_value_heads": 2, "output_router_logits": false, "rms_norm_eps": 1e-06,
  "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001, "sliding_window": null,
  "use_sliding_window": false, "vocab_size": 99})";
constexpr const char* kOlmoe = R"({"architectures": ["OlmoeForCausalLM"], "attention_bias": false,
  "clip_qkv": null, "eos_token_id": 80, "hidden_act": "silu", "hidden_size": 48,
  "intermediate_size": 30, "max_position_embeddings": 4096, "model_type": "olmoe",
  "norm_topk_prob": false, "num_attention_heads": 6, "num_experts": 8, "num_experts_per_tok": 2,
  "num_hidden_layers": 2, "num_key_value_heads": 6, "output_router_logits": false,
  "pad_token_id": 1, "router_aux_loss_coef": 0.01, "vocab_size": 99})";
constexpr const char* kMixtral = R"({"architectures": ["MixtralForCausalLM"], "bos_token_id": 1,
  "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 48, "intermediate_size": 100,
  "max_position_embeddings": 32768, "model_type": "mixtral", "num_attention_heads": 6,
  "num_experts_per_tok": 2, "num_hidden_layers": 2, "num_key_value_heads": 2,
  "num_local_experts": 8, "output_router_logits": false, "rope_theta": 1000000.0,
  "router_aux_loss_coef": 0.02, "sliding_window": null, "vocab_size": 99})";

// As openai/gpt-oss-20b's.
constexpr const char* kGptOss = R"({"architectures": ["GptOssForCausalLM"], "attention_bias": true,
  "attention_dropout": 0.0, "eos_token_id": 97, "experts_per_token": 4, "head_dim": 8,
  "hidden_act": "silu", "hidden_size": 48, "initial_context_length": 4096,
  "initializer_range": 0.02, "intermediate_size": 100,
  "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
  "max_position_embeddings": 131072, "model_type": "gpt_oss", "num_attention_heads": 6,
  "num_experts_per_tok": 4, "num_hidden_layers": 3, "num_key_value_heads": 2,
  "num_local_experts": 8, "output_router_logits": false, "pad_token_id": 96,
  "quantization_config": {"modules_to_not_convert": ["lm_head"], "quant_method": "mxfp4"},
  "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0, "beta_slow": 1.0, "factor": 32.0,
  "original_max_position_embeddings": 4096, "rope_type": "yarn", "truncate": false},
  "rope_theta": 150000, "router_aux_loss_coef": 0.9, "sliding_window": 128,
  "swiglu_limit": 7.0, "tie_word_embeddings": false, "vocab_size": 99})";

std::string with_key(const char* text, const std::string& addition) {
  return replaced(text, "\"vocab_size\"", addition + ", \"vocab_size\"");
}

DecoderConfig small_model(const std::string& family) {
  DecoderConfig config = LanguageModel::defaults(family);
  config.vocabulary = 32, config.hidden = 16, config.layers = 3, config.heads = 4;
  return config;
}

}  // namespace

TEST_CASE("a token's output is the sum of its experts' by weight, with every gradient") {
  at::manual_seed(4);
  const int64_t h = 6, inner = 5, experts = 4;
  for (const auto& [normalised, again] : {std::pair(false, false), {true, false}, {true, true}}) {
    DecoderBlockOptions options;
    options.gated = true;
    options.routing = {2, normalised};
    options.recompute_experts = again;
    const Tensors inputs{at::randn({3, 5, h}), 2 * at::randn({experts, h}),
                         at::randn({experts, 2 * inner, h}), at::randn({experts, h, inner})};
    check_gradients(
        inputs,
        [&](const Tensors& x) {
          DecoderBlockWeights w;
          w.experts = {x[1], x[2], x[3]};
          return tessera::detail::experts(x[0], w, options);
        },
        [&](const Tensors& x) {
          const at::Tensor tokens = x[0].flatten(0, 1);
          const at::Tensor probabilities = tokens.mm(x[1].t()).softmax(-1);
          std::vector<at::Tensor> rows;
          for (int64_t token = 0; token < tokens.size(0); ++token) {
            auto [weights, chosen] = probabilities[token].topk(2);
            if (options.routing.normalised) weights = weights / weights.sum();
            at::Tensor sum = at::zeros({h}, at::kDouble);
            for (int64_t i = 0; i < 2; ++i) {
              const int64_t e = chosen[i].item<int64_t>();
              const auto parts = x[2][e].mv(tokens[token]).chunk(2);
              sum = sum + weights[i] * x[3][e].mv(at::silu(parts[0]) * parts[1]);
            }
            rows.push_back(sum);
          }
          return at::stack(rows).view({3, 5, h});
        },
        1e-5);
  }
}

TEST_CASE("gpt-oss' experts have biases and a clamped activation, with every gradient") {
  at::manual_seed(8);
  const int64_t h = 6, inner = 5, experts = 4;
  DecoderBlockOptions options;
  options.gated = true;
  options.routing = {2, true};
  DecoderConfig config;
  config.experts = experts, config.experts_per_token = 2;
  // Gates and ups on both sides of the clamps.
  const Tensors inputs{at::randn({3, 5, h}),
                       2 * at::randn({experts, h}),
                       3 * at::randn({experts, h, 2 * inner}),
                       at::randn({experts, inner, h}),
                       at::randn({experts}),
                       at::randn({experts, 2 * inner}),
                       at::randn({experts, h})};
  check_gradients(
      inputs,
      [&](const Tensors& x) {
        DecoderBlockWeights w;
        w.experts = {.router = x[1],
                     .up = x[2],
                     .down = x[3],
                     .clamped = true,
                     .router_bias = x[4],
                     .up_bias = x[5],
                     .down_bias = x[6]};
        return tessera::detail::experts(x[0], w, options);
      },
      [&](const Tensors& x) {
        const std::map<std::string, at::Tensor> weights{
            {"router.weight", x[1]},        {"router.bias", x[4]},
            {"experts.gate_up_proj", x[2]}, {"experts.gate_up_proj_bias", x[5]},
            {"experts.down_proj", x[3]},    {"experts.down_proj_bias", x[6]}};
        return plain_clamped_experts(x[0], config,
                                     [&](const std::string& name) { return weights.at(name); });
      },
      1e-5);
}

TEST_CASE("config.json of families with experts is read as transformers means it") {
  const DecoderConfig qwen = parse_config(kQwen3Moe);
  CHECK(qwen.experts == 16);
  CHECK(qwen.experts_per_token == 4);
  CHECK(qwen.expert_inner == 20);
  CHECK(qwen.normalised_routing);
  CHECK(qwen.query_key_norm);
  CHECK_FALSE(qwen.query_key_norm_of_all_heads);
  CHECK(qwen.dense_layers.empty());
  // transformers 5 writes another key.
  CHECK(parse_config(replaced(kQwen3Moe, "num_experts\"", "num_local_experts\"")).experts == 16);
  CHECK(parse_config(replaced(kQwen3Moe, "step\": 1", "step\": 2")).dense_layers ==
        std::vector<int64_t>{0, 2});
  const DecoderConfig listed =
      parse_config(replaced(kQwen3Moe, "layers\": []", "layers\": [3, 1, 7]"));
  CHECK(listed.dense_layers == std::vector<int64_t>{1, 3});
  CHECK(listed.has_experts(0));
  CHECK_FALSE(listed.has_experts(1));
  CHECK(parse_config(replaced(kQwen3Moe, "window\": false", "window\": true")).windows ==
        std::vector<int64_t>(4, 4096));

  const DecoderConfig olmoe = parse_config(kOlmoe);
  CHECK(olmoe.query_key_norm_of_all_heads);
  CHECK_FALSE(olmoe.normalised_routing);
  CHECK(olmoe.expert_inner == 30);
  CHECK(olmoe.epsilon == 1e-5);
  const DecoderConfig mixtral = parse_config(kMixtral);
  CHECK(mixtral.normalised_routing);
  CHECK(mixtral.expert_inner == 100);
  CHECK(mixtral.windows.empty());
  CHECK_FALSE(mixtral.query_key_norm);

  // The balance loss, where transformers adds it.
  CHECK(qwen.router_aux_loss_coef == 0);
  CHECK_FALSE(qwen.watches_routers());
  const auto balanced = [](const char* text) {
    return parse_config(replaced(text, "logits\": false", "logits\": true"));
  };
  CHECK(balanced(kQwen3Moe).router_aux_loss_coef == 0.001);
  CHECK(balanced(kMixtral).router_aux_loss_coef == 0.02);
  const std::string unsaid = replaced(kOlmoe, "\"router_aux_loss_coef\": 0.01, ", "");
  CHECK(balanced(unsaid.c_str()).router_aux_loss_coef == 0.01);
}

TEST_CASE("config.json of gpt-oss is read as transformers means it") {
  const DecoderConfig gpt_oss = parse_config(kGptOss);
  CHECK(gpt_oss.attention_sinks);
  CHECK(gpt_oss.clamped_experts);
  CHECK(gpt_oss.normalised_routing);
  CHECK(gpt_oss.query_key_value_bias);
  CHECK(gpt_oss.dense_bias);
  CHECK(gpt_oss.experts == 8);
  CHECK(gpt_oss.expert_inner == 100);
  CHECK(gpt_oss.windows == std::vector<int64_t>{128, 0, 128});
  CHECK(gpt_oss.rotary.kind == ops::RotaryOptions::Kind::kYarn);
  CHECK_FALSE(gpt_oss.rotary.whole_bounds);
  CHECK(gpt_oss.rotary.magnitude == Approx(1.3465735902799727).epsilon(1e-15));
  // transformers' defaults are those of the published files.
  const std::string bare =
      R"({"model_type": "gpt_oss", "hidden_size": 48, "intermediate_size": 100,
      "num_attention_heads": 6, "num_hidden_layers": 3, "num_experts_per_tok": 4,
      "num_local_experts": 8, "vocab_size": 99})";
  const DecoderConfig usual = parse_config(bare);
  CHECK(usual.windows == gpt_oss.windows);
  CHECK(usual.rotary == gpt_oss.rotary);
  CHECK(usual.head_dim == 64);
  CHECK(usual.dense_bias);
  CHECK(LanguageModel::preset("gpt-oss-20b").config().rotary == gpt_oss.rotary);
  check_config_refused(replaced(kGptOss, "limit\": 7.0", "limit\": 6.0"), "only 7 is supported");
  check_config_refused(replaced(kGptOss, "\"mxfp4\"", "\"awq\""), "quantized weights");
  check_config_refused(with_key(kMixtral, "\"quantization_config\": {\"quant_method\": \"mxfp4\"}"),
                       "quantized weights");
  check_config_refused(replaced(kGptOss, "[\"sliding_attention\", \"full", "[\"linear\", \"full"),
                       "found \"linear\"");
  const ModelSpec model = LanguageModel(small_model("gpt_oss")).make_causal();
  CHECK_THAT(tensor_parallel_problem(model, 2), Catch::Contains("experts with biases"));
}

TEST_CASE("experts: what is not built is refused with its place") {
  check_config_refused(replaced(replaced(kQwen3Moe, "logits\": false", "logits\": true"),
                                "coef\": 0.001", "coef\": -1"),
                       "factors of routers' losses");
  check_config_refused(replaced(kOlmoe, "clip_qkv\": null", "clip_qkv\": 8.0"), "clipped queries");
  check_config_refused(with_key(kMixtral, "\"router_jitter_noise\": 0.1"), "noise of the router");
  check_config_refused(replaced(kOlmoe, "per_tok\": 2", "per_tok\": 9"), "between 1 and 8");
  check_config_refused(replaced(kMixtral, "num_local_experts\": 8", "num_local_experts\": 2000"),
                       "between 0 and 1024");
  const ModelSpec model = LanguageModel(small_model("qwen3_moe")).make_causal();
  CHECK(tensor_parallel_problem(model, 2).empty());
  CHECK_THROWS_WITH(add_lora(model, {.target_modules = {"experts"}}),
                    Catch::Contains("adds no adapter"));
  CHECK_THROWS_WITH(add_lora(model, {.target_modules = {"mlp.gate"}}),
                    Catch::Contains("adds no adapter"));
}

TEST_CASE("what families with experts write reads back") {
  for (const DecoderConfig& config :
       {parse_config(kQwen3Moe), parse_config(replaced(kQwen3Moe, "step\": 1", "step\": 3")),
        parse_config(kOlmoe), parse_config(kMixtral), parse_config(kGptOss),
        parse_config(replaced(kMixtral, "logits\": false", "logits\": true"))}) {
    INFO(config.model_type);
    const DecoderConfig again = parse_config(written(config, ModelHead::kCausal));
    CHECK(again.experts == config.experts);
    CHECK(again.experts_per_token == config.experts_per_token);
    CHECK(again.expert_inner == config.expert_inner);
    CHECK(again.normalised_routing == config.normalised_routing);
    CHECK(again.dense_layers == config.dense_layers);
    CHECK(again.windows == config.windows);
    CHECK(again.router_aux_loss_coef == config.router_aux_loss_coef);
    CHECK(written(again, ModelHead::kCausal) == written(config, ModelHead::kCausal));
  }
}

TEST_CASE("presets with experts have the published counts, and cost what a token meets") {
  CHECK(published_parameters("qwen3_moe") == Counts{{"qwen3-30b-a3b", 30'532'122'624}});
  CHECK(published_parameters("olmoe") == Counts{{"olmoe-1b-7b", 6'919'161'856}});
  CHECK(published_parameters("mixtral") == Counts{{"mixtral-8x7b-v0.1", 46'702'792'704}});
  CHECK(published_parameters("gpt_oss") ==
        Counts{{"gpt-oss-20b", 20'914'757'184}, {"gpt-oss-120b", 116'829'156'672}});
  // 3.61 G active ones, as published.
  CHECK(LanguageModel::preset("gpt-oss-20b").make_causal().flops_per_token(1) / 6 ==
        Approx(3.61e9).epsilon(0.01));
  const ModelSpec model = LanguageModel::preset("qwen3-30b-a3b").make_causal();
  const double met = model.flops_per_token(1) / 6;
  CHECK(met == Approx(3.04e9).epsilon(0.02));  // 3.3 G active ones, less the table looked up
  // 6 operations an adapter's weight and token, 4 a frozen one's that is met.
  const ModelSpec adapted = add_lora(model, {.r = 8});
  CHECK(adapted.flops_per_token(1) == Approx(4 * met).epsilon(0.02));
}

TEST_CASE("one expert alone is the dense layer") {
  at::manual_seed(5);
  DecoderConfig one = small_model("qwen3_moe");
  one.experts = one.experts_per_token = 1;
  one.inner = one.expert_inner = 24;
  DecoderConfig dense = one;
  dense.dense_layers = {0, 1, 2};
  const at::NoGradGuard no_grad;
  WholeModel with_expert(LanguageModel(one).make_causal(), {}),
      without(LanguageModel(dense).make_causal(), {});
  std::map<std::string, at::Tensor> values;
  for (const auto& p : with_expert.parameters()) values[p.name] = p.tensor;
  for (const auto& p : without.parameters()) {
    const size_t at = p.name.find("mlp.");
    if (at == std::string::npos) {
      p.tensor.copy_(values.at(p.name));
      continue;
    }
    const std::string layer = p.name.substr(0, at) + "mlp.experts.";
    const bool down = p.name.find("down_proj") != std::string::npos;
    const at::Tensor all = values.at(layer + (down ? "down_proj" : "gate_up_proj"))[0];
    p.tensor.copy_(down ? all : all.chunk(2)[p.name.find("gate_proj") == std::string::npos]);
  }
  MicroBatch batch;
  batch.input_ids = at::randint(0, 32, {2, 5}, at::kLong);
  CHECK(relative_error(with_expert.logits(batch), without.logits(batch)) < 1e-6);
}
