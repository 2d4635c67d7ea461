#pragma once
// GPT-2: its configuration, and the model with a causal or a classification head as a list of
// blocks.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/model/model_spec.h"
#include "tessera/models/language_model_config.h"

namespace tessera {

class Json;

struct Gpt2Config : LanguageModelConfig {
  int64_t inner = 256;  // columns of the feed-forward layer: n_inner, or 4 * hidden
  double layer_norm_epsilon = 1e-5;
  // In training only; what is dropped depends on MicroBatch::seed and the block.
  double embedding_dropout = 0.1, attention_dropout = 0.1, residual_dropout = 0.1;
  bool scale_attention = true;            // scale_attn_weights: by 1 / sqrt(head dimension)
  bool scale_attention_by_layer = false;  // scale_attn_by_inverse_layer_idx: and 1 / (layer + 1)

  Gpt2Config();

  // gpt2, gpt2-medium, gpt2-large, gpt2-xl as published, and gpt2-tiny, gpt2-mini for trials,
  // without dropout. Throws Error(kInvalidArgument) with the known names.
  static Gpt2Config preset(const std::string& name);
  static std::vector<std::string> preset_names();
  // config.json as the Hub and every version of transformers write it. Refuses what would change
  // the model's mathematics and is not built: Error(kDataLoss) with key and byte.
  static Gpt2Config from_json(const Json& json);

  // Throws Error(kInvalidArgument) when the sizes do not make a model; all other members rely on
  // it.
  void validate() const;
  int64_t parameter_count(ModelHead head, int64_t num_labels = 0) const;  // tied parameters once
  // config.json for transformers; dtype is that of the weights beside it.
  std::string to_json(ModelHead head, at::ScalarType dtype = at::kFloat) const;
};

// Blocks "embedding", "h.0" ... and "head", with the parameters' names of transformers:
//   embedding    wte.weight, wpe.weight; position i is the i-th column, padded or not, as in
//                transformers
//   h.<i>        linear weights are stored [in, out]; c_attn is queries, keys and values one after
//                the other
//   head         ln_f.{weight,bias}, and wte.weight (tied) or lm_head.weight
// Drawn weights are normal(0, initializer_range), those of the projections back into the residual
// stream narrower by sqrt(2 * layers) (Radford et al. 2019); zero biases, unit norms.
ModelSpec make_gpt2_causal(const Gpt2Config& config);

// The same body under score.weight at the rightmost id that is not pad_token, as
// make_bloom_classifier.
ModelSpec make_gpt2_classifier(const Gpt2Config& config, int64_t num_labels);

}  // namespace tessera
