// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Built-in language models: their configurations and the blocks made from them.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/model/model_spec.h"
#include "tessera/models/decoder_config.h"

namespace tessera {

class Json;

/// A built-in language model. Copies are independent.
class LanguageModel {
 public:
  LanguageModel() = default;
  /// A model of this configuration, checked by validate().
  LanguageModel(DecoderConfig config) : config_(std::move(config)) {}  // NOLINT: it is one

  /// Reads config.json of the Hub and of every version of transformers; "model_type" selects the
  /// family. Throws Error(kDataLoss) with key and byte for unsupported settings that change the
  /// mathematics.
  static LanguageModel from_json(const Json& json);
  static LanguageModel from_file(
      const std::string& path);  ///< reads a config.json like from_json()
  /// Reads the directory's config.json.
  static LanguageModel from_directory(const std::string& path);
  /// A preset for random weights: published models (bloom-560m, gpt2, llama-3.2-1b, qwen2.5-0.5b
  /// ...), and <family>-tiny and -mini for trials. Throws Error(kInvalidArgument) with the known
  /// names.
  static LanguageModel preset(const std::string& name);
  /// The model of --model_config: from_file() for a name that ends in .json, else preset().
  static LanguageModel from_name(const std::string& name);
  static std::vector<std::string> preset_names();  ///< names of all presets
  /// A family's default configuration, in small sizes. Throws Error(kInvalidArgument) for other
  /// names.
  static DecoderConfig defaults(const std::string& model_type);

  ///@{
  /// The model's configuration.
  const DecoderConfig& config() const { return config_; }
  DecoderConfig& config() { return config_; }
  ///@}

  /// A causal model: blocks "embedding", "h.0" or "layers.0" ... and "head", with transformers'
  /// parameter names. Random weights are equal on every device and layout; biases are zero, norms
  /// one. The head is the final norm with the embedding's table (tied) or lm_head.weight. Its loss
  /// is the sum of the cross-entropy over labels != -100.
  ModelSpec make_causal() const;
  /// A classifier: the same body under a linear layer (score.weight, no bias) on the final hidden
  /// state at the rightmost id that is not pad_token (without a pad_token: the rightmost position
  /// of attention_mask). The head returns {sum of the cross-entropy, correct predictions}.
  /// score.weight is random if the source lacks it, e.g. a directory of a causal model. Labels: 0
  /// .. num_labels-1, or -100 for none.
  ModelSpec make_classifier(int64_t num_labels) const;
  ModelSpec make(ModelHead head,
                 int64_t num_labels = 0) const;  ///< makes the causal model or the classifier
  /// Elements of every parameter, block by block; tied ones once, at their owner. Allocates
  /// nothing.
  std::vector<std::vector<int64_t>> parameter_sizes(ModelHead head, int64_t num_labels = 0) const;
  /// Elements of the model; tied parameters count once.
  int64_t parameter_count(ModelHead head, int64_t num_labels = 0) const;
  void validate() const {
    config_.validate();
  }  ///< checks the description: DecoderConfig::validate()
  /// config.json for transformers; dtype: of the weights beside it.
  std::string to_json(ModelHead head, at::ScalarType dtype = at::kFloat) const;

 private:
  DecoderConfig config_;
};

}  // namespace tessera
