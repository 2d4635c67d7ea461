// SPDX-License-Identifier: MIT
#include "tessera/core/error.h"
#include "tessera/core/json.h"
#include "tessera/models/language_model.h"
#include "tests/unit/models/config_text.h"

using namespace tessera;
using namespace tessera::testing;

namespace {

// The Hub's Llama 3.2 with small sizes.
constexpr const char* kHub = R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
  "attention_dropout": 0.0, "bos_token_id": 80, "eos_token_id": [81, 82], "head_dim": 16,
  "hidden_act": "silu", "hidden_size": 48, "initializer_range": 0.02, "intermediate_size": 100,
  "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": 6, "num_hidden_layers": 2, "num_key_value_heads": 2, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0,
  "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
  "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16", "vocab_size": 99})";

using Kind = ops::RotaryOptions::Kind;
constexpr auto parse = parse_config;
constexpr auto check_refused = check_config_refused;

std::string with(const std::string& addition) {
  return replaced(kHub, "\"head_dim\"", addition + ", \"head_dim\"");
}

}  // namespace

TEST_CASE("the Llama presets have the published parameter counts") {
  CHECK(published_parameters("llama") == Counts{{"llama-3.2-1b", 1'235'814'400},
                                                {"llama-3.2-3b", 3'212'749'824},
                                                {"llama-3.1-8b", 8'030'261'248}});
}

TEST_CASE("Llama's config.json is read as older and newer transformers write it") {
  const DecoderConfig hub = parse(kHub);
  CHECK(hub.key_heads == 2);
  CHECK(hub.head_dim == 16);
  CHECK(hub.inner == 100);
  CHECK(hub.tied_head);
  CHECK(hub.eos_token == 81);
  CHECK(hub.rotary.theta == 500'000);
  CHECK(hub.epsilon == 1e-5);
  CHECK(hub.rotary.kind == Kind::kLlama3);
  CHECK(hub.rotary.factor == 32);
  CHECK(hub.rotary.original_positions == 8192);
  CHECK(hub.max_positions == 0);  // rotary positions are unlimited

  const DecoderConfig saved = parse(R"({"model_type": "llama", "vocab_size": 99, "hidden_size": 48,
    "intermediate_size": 100, "num_hidden_layers": 2, "num_attention_heads": 6,
    "attention_bias": true, "mlp_bias": true, "pad_token_id": -1,
    "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 77.0}})");
  CHECK(saved.key_heads == 6);
  CHECK(saved.head_size() == 8);
  CHECK(saved.query_key_value_bias);
  CHECK(saved.dense_bias);
  CHECK(saved.mlp_bias);
  CHECK_FALSE(saved.tied_head);
  CHECK_FALSE(saved.pad_token.has_value());
  CHECK(saved.rotary.theta == 77);
  CHECK(saved.rotary.kind == Kind::kLinear);
  CHECK(saved.rotary.factor == 2);
  CHECK(saved.epsilon == 1e-6);
  const DecoderConfig plain =
      parse(replaced(replaced(kHub, "llama3", "default"), "500000.0", "7.5"));
  CHECK(plain.rotary.kind == Kind::kDefault);
  CHECK(plain.rotary.theta == 7.5);
}

TEST_CASE("Llama: what would change the model and is not built is refused with its place") {
  check_refused(replaced(kHub, "silu", "gelu"), "hidden_act: only \"silu\"");
  check_refused(replaced(kHub, "llama3", "longrope"), "scaling \"longrope\" is not supported");
  check_refused(replaced(kHub, "\"low_freq_factor\": 1.0,", ""), "low_freq_factor");
  check_refused(replaced(kHub, "\"low_freq_factor\": 1.0", "\"low_freq_factor\": 9.0"),
                "low_freq_factor below");
  check_refused(with(R"("sliding_window": 128)"), "sliding_window");
  check_refused(with(R"("partial_rotary_factor": 0.5)"), "rotated as a whole");
  check_refused(replaced(kHub, "_heads\": 2", "_heads\": 4"), "not a multiple of 4 key");
  check_refused(replaced(kHub, "\"head_dim\": 16", "\"head_dim\": 15"), "must be even");
  check_refused(replaced(replaced(kHub, "\"head_dim\": 16,", ""), "heads\": 6", "heads\": 10"),
                "does not divide hidden_size 48");
  check_refused(replaced(kHub, "\"intermediate_size\": 100,", ""), "intermediate_size");
  const std::string wide =
      replaced(kHub, "\"num_attention_heads\": 6", "\"num_attention_heads\": 16777216");
  check_refused(replaced(replaced(wide, "\"head_dim\": 16", "\"head_dim\": 16777216"),
                         "\"hidden_size\": 48", "\"hidden_size\": 16777216"),
                "parameters; at most");
}

TEST_CASE("Llama's config.json is read back as it was written") {
  DecoderConfig config = parse(with(R"("pad_token_id": 7)"));
  config.labels = {"no", "yes"};
  config.query_key_value_bias = config.dense_bias = true;
  for (const Kind kind : {Kind::kLlama3, Kind::kLinear, Kind::kDefault, Kind::kYarn}) {
    config.rotary = {.theta = 5e5};
    if (kind != Kind::kDefault) config.rotary.kind = kind, config.rotary.factor = 3;
    if (kind == Kind::kLlama3 || kind == Kind::kYarn) config.rotary.original_positions = 4096;
    if (kind == Kind::kLlama3) config.rotary.high_frequency_factor = 5;
    if (kind == Kind::kYarn) {
      config.rotary.beta_fast = 31, config.rotary.beta_slow = 2;
      config.rotary.whole_bounds = false, config.rotary.magnitude = 1.25;
    }
    const DecoderConfig back = parse(written(config, ModelHead::kClassification, at::kBFloat16));
    CHECK(back.labels == config.labels);
    CHECK(back.head_dim == 16);
    CHECK(back.key_heads == 2);
    CHECK(back.trained_positions == 131'072);
    CHECK(back.query_key_value_bias);
    CHECK(back.dense_bias);
    CHECK(back.rotary == config.rotary);
  }
}
