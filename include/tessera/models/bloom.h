#pragma once
// BLOOM: its configuration, and the model with a causal or a classification head as a list of
// blocks.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tessera/model/model_spec.h"
#include "tessera/models/language_model_config.h"

namespace tessera {

class Json;

struct BloomConfig : LanguageModelConfig {
  double layer_norm_epsilon = 1e-5;
  bool residual_post_layernorm = false;  // apply_residual_connection_post_layernorm
  // In training only; what is dropped depends on MicroBatch::seed and the block.
  double hidden_dropout = 0, attention_dropout = 0;

  BloomConfig();

  // A configuration with random weights in mind: bloom-560m, bloom-1b7, bloom-3b, bloom-7b1 as
  // published, and bloom-tiny, bloom-mini, bloom-small for trials. Throws Error(kInvalidArgument)
  // with the known names.
  static BloomConfig preset(const std::string& name);
  static std::vector<std::string> preset_names();
  // config.json as the Hub and every version of transformers write it. Throws Error(kDataLoss) with
  // key and byte.
  static BloomConfig from_json(const Json& json);
  static BloomConfig from_file(const std::string& path);

  // Throws Error(kInvalidArgument) when the sizes do not make a model; all other members rely on
  // it.
  void validate() const;
  int64_t parameter_count(ModelHead head, int64_t num_labels = 0) const;  // tied parameters once
  // config.json for transformers; dtype is that of the weights beside it.
  std::string to_json(ModelHead head, at::ScalarType dtype = at::kFloat) const;
};

// Blocks "transformer.word_embeddings + norm", "h.0" ... and the head with its loss:
//   embedding    word_embeddings.weight, word_embeddings_layernorm.{weight,bias}
//   h.<i>        the names of BloomBlock in transformers
//   head         ln_f.{weight,bias}, and word_embeddings.weight (tied) or lm_head.weight; sum of
//   the cross-entropy over labels != -100
// Drawn weights are normal(0, initializer_range), zero biases and unit norms, the same on every
// device and layout.
ModelSpec make_bloom_causal(const BloomConfig& config);

// The same body under a linear classifier (score.weight, no bias) on the final hidden state at the
// rightmost id that is not pad_token (without a pad_token: the rightmost position of
// attention_mask). The loss block returns {sum of the cross-entropy, correct predictions}.
// score.weight is drawn when the source lacks it, as in a directory saved from a causal model.
// Labels are 0 .. num_labels-1, or -100 for rows without one.
ModelSpec make_bloom_classifier(const BloomConfig& config, int64_t num_labels);

}  // namespace tessera
