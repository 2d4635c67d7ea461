#pragma once
// Llama 1 to 3.x: its configuration, and the model with a causal or a classification head as a list
// of blocks.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tessera/model/model_spec.h"
#include "tessera/models/language_model_config.h"
#include "tessera/ops/attention.h"

namespace tessera {

class Json;

struct LlamaConfig : LanguageModelConfig {
  int64_t inner = 128;       // intermediate_size
  int64_t key_heads = 2;     // num_key_value_heads: each serves heads / key_heads query heads
  int64_t head_dim = 16;     // hidden / heads unless the file says otherwise
  int64_t positions = 2048;  // max_position_embeddings: of the original training, no limit here
  double rms_norm_epsilon = 1e-5;
  double rope_theta = 500'000;
  double rope_linear_factor = 1;                  // rope_type "linear"
  std::optional<ops::Llama3Scaling> rope_llama3;  // rope_type "llama3"
  bool attention_bias = false, mlp_bias = false;
  double attention_dropout = 0;  // in training only

  LlamaConfig();

  // llama-3.2-1b, llama-3.2-3b, llama-3.1-8b as published, and llama-tiny, llama-mini for trials.
  // Throws Error(kInvalidArgument) with the known names.
  static LlamaConfig preset(const std::string& name);
  static std::vector<std::string> preset_names();
  // config.json as the Hub and every version of transformers write it. Refuses what would change
  // the model's mathematics and is not built: Error(kDataLoss) with key and byte.
  static LlamaConfig from_json(const Json& json);

  // Throws Error(kInvalidArgument) when the sizes do not make a model; all other members rely on
  // it.
  void validate() const;
  int64_t parameter_count(ModelHead head, int64_t num_labels = 0) const;  // tied parameters once
  // config.json for transformers; dtype is that of the weights beside it.
  std::string to_json(ModelHead head, at::ScalarType dtype = at::kFloat) const;
};

// Blocks "embedding", "layers.0" ... and "head", with the parameters' names of transformers:
//   embedding    embed_tokens.weight; as in transformers a looked-up pad_token gets no gradient
//   layers.<i>   position i is the i-th column, padded or not, as in transformers
//   head         norm.weight, and embed_tokens.weight (tied) or lm_head.weight
// Drawn weights are normal(0, initializer_range), zero biases and unit norms.
ModelSpec make_llama_causal(const LlamaConfig& config);

// The same body under score.weight at the rightmost id that is not pad_token, as
// make_bloom_classifier.
ModelSpec make_llama_classifier(const LlamaConfig& config, int64_t num_labels);

}  // namespace tessera
