// SPDX-License-Identifier: MIT
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tests/unit/models/config_text.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

using Kind = ops::RotaryOptions::Kind;
using Windows = std::vector<int64_t>;
constexpr auto parse = parse_config;
constexpr auto check_refused = check_config_refused;

// The Hub's files with small sizes.
constexpr const char* kQwen2 = R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
  "bos_token_id": 80, "eos_token_id": 81, "hidden_act": "silu", "hidden_size": 48,
  "initializer_range": 0.02, "intermediate_size": 100, "max_position_embeddings": 32768,
  "max_window_layers": 1, "model_type": "qwen2", "num_attention_heads": 6, "num_hidden_layers": 3,
  "num_key_value_heads": 2, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
  "sliding_window": 32, "tie_word_embeddings": true, "use_sliding_window": false,
  "vocab_size": 99})";
constexpr const char* kQwen3 = R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
  "head_dim": 24, "hidden_size": 48, "intermediate_size": 100, "model_type": "qwen3",
  "num_attention_heads": 6, "num_hidden_layers": 3, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
  "rope_scaling": null, "rope_theta": 1000000, "sliding_window": null, "vocab_size": 99})";
constexpr const char* kMistral = R"({"architectures": ["MistralForCausalLM"], "bos_token_id": 1,
  "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 48, "intermediate_size": 100,
  "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 6,
  "num_hidden_layers": 2, "num_key_value_heads": 2, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
  "sliding_window": 40, "tie_word_embeddings": false, "vocab_size": 99})";

std::string with(const char* text, const std::string& addition) {
  return replaced(text, "\"vocab_size\"", addition + ", \"vocab_size\"");
}

}  // namespace

TEST_CASE("the Qwen and Mistral presets have the published parameter counts") {
  CHECK(published_parameters("qwen2") == Counts{{"qwen2.5-0.5b", 494'032'768},
                                                {"qwen2.5-1.5b", 1'543'714'304},
                                                {"qwen2.5-3b", 3'085'938'688},
                                                {"qwen2.5-7b", 7'615'616'512},
                                                {"qwen2.5-14b", 14'770'033'664},
                                                {"qwen2.5-32b", 32'763'876'352}});
  CHECK(published_parameters("qwen3") == Counts{{"qwen3-0.6b", 596'049'920},
                                                {"qwen3-1.7b", 1'720'574'976},
                                                {"qwen3-4b", 4'022'468'096},
                                                {"qwen3-8b", 8'190'735'360},
                                                {"qwen3-14b", 14'768'307'200}});
  CHECK(published_parameters("mistral") ==
        Counts{{"mistral-7b-v0.1", 7'241'732'096}, {"mistral-7b-v0.3", 7'248'023'552}});
}

TEST_CASE("Qwen's and Mistral's config.json are read as transformers means them") {
  const DecoderConfig qwen2 = parse(kQwen2);
  CHECK(qwen2.query_key_value_bias);
  CHECK_FALSE(qwen2.dense_bias);
  CHECK_FALSE(qwen2.query_key_norm);
  CHECK(qwen2.windows.empty());
  CHECK(qwen2.rotary == ops::RotaryOptions{.theta = 1e6});
  const std::string windows = replaced(kQwen2, "window\": false", "window\": true");
  CHECK(parse(windows).windows == Windows{0, 32, 32});
  CHECK(parse(with(windows.c_str(), R"("layer_types": ["sliding_attention", "full_attention",
    "sliding_attention"])"))
            .windows == Windows{32, 0, 32});

  const DecoderConfig qwen3 = parse(kQwen3);
  CHECK(qwen3.query_key_norm);
  CHECK(qwen3.head_size() == 24);
  CHECK_FALSE(qwen3.query_key_value_bias);
  CHECK(parse(replaced(kQwen3, "\"head_dim\": 24,", "")).head_size() == 128);
  CHECK(parse(replaced(kQwen3, "bias\": false", "bias\": true")).dense_bias);

  CHECK(parse(kMistral).windows == Windows{40, 40});
  CHECK(parse(replaced(kMistral, "\"sliding_window\": 40", "\"sliding_window\": null"))
            .windows.empty());
  CHECK(parse(replaced(kMistral, "\"sliding_window\": 40,", "")).windows == Windows{4096, 4096});
}

TEST_CASE("yarn's factor and magnitude follow from the keys that are given") {
  const auto yarn = [](const std::string& more) {
    return parse(replaced(kQwen3, "\"rope_scaling\": null", R"("rope_scaling": {"type": "yarn",
      "original_max_position_embeddings": 64, )" + more + "}, \"max_position_embeddings\": 256"))
        .rotary;
  };
  const ops::RotaryOptions usual = yarn("\"factor\": 8.0");
  CHECK(usual.kind == Kind::kYarn);
  CHECK(usual.original_positions == 64);
  CHECK(usual.beta_fast == 32);
  CHECK(usual.whole_bounds);
  CHECK(usual.magnitude == Approx(0.1 * std::log(8.0) + 1));
  CHECK(yarn("\"factor\": 8.0, \"attention_factor\": 1.5").magnitude == 1.5);
  CHECK(yarn("\"factor\": 8.0, \"mscale\": 2.0, \"mscale_all_dim\": 0.5").magnitude ==
        Approx((0.2 * std::log(8.0) + 1) / (0.05 * std::log(8.0) + 1)));
  CHECK(yarn("\"truncate\": false").factor == 4);
  CHECK_FALSE(yarn("\"truncate\": false").whole_bounds);
}

TEST_CASE("Qwen and Mistral: what is not built is refused with its place") {
  const std::string windows = replaced(kQwen2, "window\": false", "window\": true");
  check_refused(with(windows.c_str(), R"("layer_types": ["full_attention", "chunked_attention",
    "full_attention"])"),
                "found \"chunked_attention\"");
  check_refused(with(windows.c_str(), R"("layer_types": ["full_attention"])"), "1 layers of 3");
  check_refused(with(kMistral, R"("layer_types": ["full_attention", "sliding_attention"])"),
                "Ministral");
  check_refused(with(kQwen3, R"("quantization_config": {"bits": 4})"), "quantized weights");
  check_refused(replaced(kQwen3, "\"head_dim\": 24", "\"head_dim\": 23"), "must be even");
}

TEST_CASE("what Qwen and Mistral write reads back") {
  for (DecoderConfig config : {parse(kQwen2), parse(kQwen3), parse(kMistral)}) {
    for (const bool sliding : {false, true}) {
      INFO(config.model_type << (sliding ? ", windows" : ""));
      config.windows.clear();
      if (sliding) config.windows.assign(static_cast<size_t>(config.layers), 17);
      if (sliding && config.model_type != "mistral") config.windows[0] = 0;
      const std::string text = written(config, ModelHead::kCausal);
      const DecoderConfig back = parse(text);
      CHECK(back.windows == config.windows);
      CHECK(back.head_size() == config.head_size());
      CHECK(back.query_key_value_bias == config.query_key_value_bias);
      CHECK(back.rotary == config.rotary);
      CHECK(back.epsilon == config.epsilon);
      CHECK(written(back, ModelHead::kCausal) == text);
    }
  }
}
