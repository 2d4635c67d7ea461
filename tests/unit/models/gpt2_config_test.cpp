// SPDX-License-Identifier: MIT
#include <functional>

#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/models/language_model.h"
#include "tests/unit/models/config_text.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// The Hub's file.
constexpr const char* kHub =
    R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
  "attn_pdrop": 0.1, "bos_token_id": 98, "embd_pdrop": 0.2, "eos_token_id": 98,
  "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 32,
  "n_embd": 48, "n_head": 6, "n_layer": 2, "n_positions": 32, "resid_pdrop": 0.3,
  "summary_type": "cls_index", "task_specific_params": {"text-generation": {"do_sample": true}},
  "vocab_size": 99})";

constexpr auto parse = parse_config;
constexpr auto check_refused = check_config_refused;

std::string with(const std::string& addition) {
  return replaced(kHub, "\"n_ctx\"", addition + ", \"n_ctx\"");
}

}  // namespace

TEST_CASE("the GPT-2 presets have the published parameter counts") {
  CHECK(published_parameters("gpt2") == Counts{{"gpt2", 124'439'808},
                                               {"gpt2-medium", 354'823'168},
                                               {"gpt2-large", 774'030'080},
                                               {"gpt2-xl", 1'557'611'200}});
  CHECK(LanguageModel::preset("gpt2").config().attention_dropout == 0.1);
  CHECK(LanguageModel::preset("gpt2").config().notices.size() == 1);
  CHECK(LanguageModel::preset("gpt2-tiny").config().attention_dropout == 0);
  CHECK(LanguageModel::preset("gpt2-tiny").config().notices.empty());
}

TEST_CASE("GPT-2's config.json is read in every spelling, with transformers' defaults") {
  const DecoderConfig hub = parse(kHub);
  CHECK(hub.hidden == 48);
  CHECK(hub.heads == 6);
  CHECK(hub.layers == 2);
  CHECK(hub.inner_size() == 192);
  CHECK(hub.max_positions == 32);
  CHECK(hub.attention_dropout == 0.1);
  CHECK(hub.embedding_dropout == 0.2);
  CHECK(hub.residual_dropout == 0.3);
  CHECK(hub.tied_head);
  CHECK(hub.eos_token == 98);
  CHECK_FALSE(hub.pad_token.has_value());
  const DecoderConfig other = parse(R"({"model_type": "gpt2", "vocab_size": 99, "hidden_size": 48,
    "num_attention_heads": 6, "num_hidden_layers": 2, "max_position_embeddings": 32, "n_inner": 50,
    "pad_token_id": 7, "tie_word_embeddings": false, "activation_function": "gelu_pytorch_tanh",
    "scale_attn_weights": false, "scale_attn_by_inverse_layer_idx": true, "eos_token_id": null})");
  CHECK(other.inner == 50);
  CHECK(other.residual_dropout == 0.1);
  CHECK_FALSE(other.tied_head);
  CHECK_FALSE(other.scale_attention);
  CHECK(other.scale_attention_by_layer);
  CHECK_FALSE(other.eos_token.has_value());
  CHECK(other.bos_token == 50'256);
}

TEST_CASE("GPT-2's activation is read and written: by tanh, or exact") {
  CHECK_FALSE(parse(kHub).exact_gelu);
  for (const char* name : {"gelu", "gelu_python"}) {
    const DecoderConfig exact = parse(replaced(kHub, "gelu_new", name));
    CHECK(exact.exact_gelu);
    CHECK(parse(written(exact, ModelHead::kCausal)).exact_gelu);
  }
  for (const char* name : {"gelu_fast", "gelu_pytorch_tanh"}) {
    const DecoderConfig tanh = parse(replaced(kHub, "gelu_new", name));
    CHECK_FALSE(tanh.exact_gelu);
    CHECK(written(tanh, ModelHead::kCausal).find("\"gelu_new\"") != std::string::npos);
  }
}

TEST_CASE("GPT-2: what would change the model and is not built is refused with its place") {
  check_refused(replaced(kHub, "gelu_new", "relu"),
                "activation_function: only \"gelu_new\" and \"gelu\"");
  check_refused(with(R"("add_cross_attention": true)"), "add_cross_attention");
  check_refused(with(R"("is_encoder_decoder": true)"), "is_encoder_decoder");
  check_refused(with(R"("pruned_heads": {"0": [1]})"), "pruned_heads");
  check_refused(with(R"("quantization_config": {"bits": 4})"), "quantized");
  check_refused(replaced(kHub, "0.3", "1.0"), "resid_pdrop: expected a probability");
  check_refused(replaced(kHub, "\"n_head\": 6", "\"n_head\": 5"), "multiple of 5 heads");
  check_refused(with(R"("hidden_size": 64)"), "contradicts \"n_embd\"");
  check_refused(replaced(kHub, "\"n_positions\": 32, ", ""), "\"n_positions\" is missing");
  check_refused(replaced(kHub, "\"gpt2\"", "\"gptj\""), "model type \"gptj\"");
  const std::string wide = replaced(kHub, "\"n_embd\": 48", "\"n_embd\": 16777212");
  check_refused(replaced(wide, "\"n_layer\": 2", "\"n_layer\": 6000"), "parameters; at most");
}

TEST_CASE("GPT-2's config.json is read back as it was written") {
  DecoderConfig config = parse(replaced(kHub, "\"n_ctx\"", R"("n_inner": 50, "pad_token_id": 7,
    "scale_attn_by_inverse_layer_idx": true, "tie_word_embeddings": false, "n_ctx")"));
  config.labels = {"no", "yes"};
  const DecoderConfig back = parse(written(config, ModelHead::kClassification, at::kBFloat16));
  CHECK(back.labels == config.labels);
  CHECK(back.inner == 50);
  CHECK(back.heads == config.heads);
  CHECK(back.pad_token == 7);
  CHECK(back.embedding_dropout == 0.2);
  CHECK(back.scale_attention_by_layer);
  CHECK_FALSE(back.tied_head);
  config.labels.clear();
  CHECK_THROWS_AS(written(config, ModelHead::kClassification), Error);
}
