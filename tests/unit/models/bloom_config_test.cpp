// SPDX-License-Identifier: MIT
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/models/language_model.h"
#include "tests/support/messages.hpp"
#include "tests/unit/models/config_text.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

constexpr const char* kHub = R"({"apply_residual_connection_post_layernorm": false,
  "attention_dropout": 0.0, "architectures": ["BloomModel"], "bos_token_id": 1, "eos_token_id": 2,
  "pad_token_id": 3, "hidden_dropout": 0.0, "initializer_range": 0.02, "layer_norm_epsilon": 1e-05,
  "model_type": "bloom", "n_embed": 48, "n_inner": null, "n_layer": 2, "num_attention_heads": 6,
  "offset_alibi": 100, "pretraining_tp": 1, "vocab_size": 99, "torch_dtype": "float16"})";

constexpr auto parse = parse_config;
constexpr auto check_refused = check_config_refused;

}  // namespace

TEST_CASE("the presets have the published parameter counts") {
  CHECK(published_parameters("bloom") == Counts{{"bloom-560m", 559'214'592},
                                                {"bloom-1b7", 1'722'408'960},
                                                {"bloom-3b", 3'002'557'440},
                                                {"bloom-7b1", 7'069'016'064}});
}

TEST_CASE("bloom-7b means bloom-7b1 and says so; unknown names list the known ones") {
  const auto config = LanguageModel::preset("bloom-7b").config();
  CHECK(config.name == "bloom-7b1");
  REQUIRE(config.notices.size() == 1);
  CHECK_THAT(config.notices[0], test::contains("bloom-7b1"));
  CHECK_THAT(
      error_of(ErrorCode::kInvalidArgument, [] { LanguageModel::preset("bloom-1b1").config(); }),
      test::contains("bloom-1b7"));
}

TEST_CASE("the Hub's and transformers' spellings of config.json mean the same") {
  const auto hub = parse(kHub);
  CHECK(hub.hidden == 48);
  CHECK(hub.layers == 2);
  CHECK(hub.heads == 6);
  CHECK(hub.vocabulary == 99);
  CHECK(hub.pad_token == 3);
  CHECK(hub.tied_head);
  CHECK(hub.labels.empty());
  CHECK(hub.notices.empty());
  const auto saved = parse(R"({"model_type": "bloom", "hidden_size": 48, "n_layer": 2, "n_head": 6,
    "vocab_size": 99, "dtype": "float32", "pad_token_id": null, "tie_word_embeddings": false,
    "apply_residual_connection_post_layernorm": true, "eos_token_id": [2, 7],
    "layer_norm_epsilon": 1e-6})");
  CHECK(saved.hidden == 48);
  CHECK(saved.heads == 6);
  CHECK_FALSE(saved.pad_token.has_value());
  CHECK(saved.eos_token == 2);
  CHECK_FALSE(saved.tied_head);
  CHECK(saved.residual_post_layernorm);
  CHECK(saved.epsilon == 1e-6);
  CHECK(parse(replaced(kHub, R"("n_layer")", R"("num_hidden_layers")")).layers == 2);
  CHECK(parse(replaced(kHub, R"("n_layer")", R"("n_head": 6, "n_layer")")).heads == 6);
}

TEST_CASE("the number of labels may exist only as the length of id2label") {
  const auto labels = [](const std::string& addition) {
    return parse(replaced(kHub, "\"n_inner\"", addition + ", \"n_inner\"")).labels;
  };
  CHECK(labels(R"("id2label": {"1": "no", "0": "yes", "2": "?"})") ==
        std::vector<std::string>{"yes", "no", "?"});
  CHECK(labels(R"("num_labels": 2)") == std::vector<std::string>{"LABEL_0", "LABEL_1"});
  check_refused(replaced(kHub, "\"n_inner\"", R"("id2label": {"0": "a", "2": "b"}, "n_inner")"),
                "0 to 1");
  check_refused(replaced(kHub, "\"n_inner\"", R"("id2label": {"x": "a"}, "n_inner")"), "0 to 0");
  check_refused(replaced(kHub, "\"n_inner\"",
                         R"("num_labels": 3, "id2label": {"0": "a", "1": "b"}, "n_inner")"),
                "contradicts");
  check_refused(replaced(kHub, "\"n_inner\"", R"("id2label": {"0": "a", "1": "a"}, "n_inner")"),
                "id2label.1: two classes have this name");
}

TEST_CASE("a configuration that is no trainable BLOOM is refused with its key") {
  check_refused(replaced(kHub, "\"bloom\"", "\"boom\""), "model type \"boom\"");
  check_refused(replaced(kHub, "\"vocab_size\": 99, ", ""), "vocab_size");
  check_refused(replaced(kHub, "\"n_embed\": 48", "\"n_embed\": -48"), "n_embed");
  check_refused(replaced(kHub, "\"n_embed\": 48", "\"n_embed\": 48.0"), "n_embed");
  check_refused(replaced(kHub, "\"n_embed\": 48", "\"n_embed\": 50"), "6 heads");
  check_refused(replaced(kHub, "\"n_embed\": 48", "\"hidden_size\": 96, \"n_embed\": 48"),
                "contradicts");
  check_refused(replaced(kHub, "\"n_inner\": null", "\"n_inner\": 100"), "n_inner");
  check_refused(replaced(kHub, "\"n_inner\": null", "\"quantization_config\": {}"), "quantized");
  check_refused(replaced(kHub, "1e-05", "\"small\""), "layer_norm_epsilon");
  check_refused(replaced(kHub, "1e-05", "-1"), "layer_norm_epsilon");
  check_refused(replaced(kHub, "\"n_layer\": 2", "\"n_layer\": 65537"), "between 1 and 65536");
  const std::string wide = replaced(kHub, "\"n_embed\": 48", "\"n_embed\": 16777212");
  check_refused(replaced(wide, "\"n_layer\": 2", "\"n_layer\": 6000"), "parameters; at most");
}

TEST_CASE("dropout in the file is taken over and announced") {
  const auto hidden = parse(replaced(kHub, "\"hidden_dropout\": 0.0", "\"hidden_dropout\": 0.1"));
  CHECK(hidden.residual_dropout == 0.1);
  CHECK(hidden.attention_dropout == 0);
  REQUIRE(hidden.notices.size() == 1);
  CHECK_THAT(hidden.notices[0], test::contains("drops out up to 0.1"));
  const auto attention =
      parse(replaced(kHub, "\"attention_dropout\": 0.0", "\"attention_dropout\": 0.25"));
  CHECK(attention.residual_dropout == 0);
  CHECK(attention.attention_dropout == 0.25);
  CHECK(attention.notices.size() == 1);
  CHECK(parse(replaced(kHub, "\"hidden_dropout\": 0.0, ", "")).residual_dropout == 0);
  for (const std::string wrong : {"-0.1", "1.0", "1", "1.5", "\"some\"", "true"}) {
    check_refused(replaced(kHub, "\"hidden_dropout\": 0.0", "\"hidden_dropout\": " + wrong),
                  "hidden_dropout");
    check_refused(replaced(kHub, "\"attention_dropout\": 0.0", "\"attention_dropout\": " + wrong),
                  "attention_dropout");
  }
  DecoderConfig config;
  config.residual_dropout = 1;
  CHECK_THROWS_AS(config.validate(), Error);
}

TEST_CASE("a written configuration reads back") {
  auto config = parse(kHub);
  config.labels = {"World", "Sports", "Sci/Tech"};
  config.pad_token = std::nullopt;
  config.residual_post_layernorm = true;
  config.epsilon = 3e-6;
  config.residual_dropout = 0.125;
  config.attention_dropout = 0.25;
  const auto back = parse(written(config, ModelHead::kClassification, at::kBFloat16));
  CHECK(back.labels == config.labels);
  CHECK(back.hidden == 48);
  CHECK(back.heads == 6);
  CHECK(back.layers == 2);
  CHECK(back.vocabulary == 99);
  CHECK(back.residual_post_layernorm);
  CHECK(back.epsilon == 3e-6);
  CHECK(back.residual_dropout == 0.125);
  CHECK(back.attention_dropout == 0.25);
  CHECK_FALSE(back.pad_token.has_value());
  CHECK(parse(written(config, ModelHead::kCausal)).labels.empty());
  CHECK_THROWS_AS(written(parse(kHub), ModelHead::kClassification), Error);
}
