// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Every language model that is built in: where its description comes from, and the blocks it is
/// made into.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tessera/model/model_spec.h"
#include "tessera/models/decoder_config.h"

namespace tessera {

class Json;

/// A value: copies are independent.
class LanguageModel {
 public:
  LanguageModel() = default;
  /// A model of this description, which validate() checks.
  LanguageModel(DecoderConfig config) : config_(std::move(config)) {}  // NOLINT: it is one

  /// config.json as the Hub and every version of transformers write it; the family is that of
  /// "model_type". What would change the model's mathematics and is not built is refused:
  /// Error(kDataLoss) with key and byte.
  static LanguageModel from_json(const Json& json);
  static LanguageModel from_file(
      const std::string& path);  ///< reads this config.json as from_json() does
  static LanguageModel from_directory(const std::string& path);  ///< its config.json
  /// For random weights: models as published (bloom-560m, gpt2, llama-3.2-1b, qwen2.5-0.5b ...),
  /// and <family>-tiny and -mini for trials. Throws Error(kInvalidArgument) with the known names.
  static LanguageModel preset(const std::string& name);
  /// What --model_config says: from_file() of a name that ends in .json, else preset().
  static LanguageModel from_name(const std::string& name);
  static std::vector<std::string> preset_names();  ///< the names that preset() knows
  /// What a family has where nothing else is said, in small sizes. Throws Error(kInvalidArgument).
  static DecoderConfig defaults(const std::string& model_type);

  ///@{
  /// What the model is made of.
  const DecoderConfig& config() const { return config_; }
  DecoderConfig& config() { return config_; }
  ///@}

  /// Blocks "embedding", "h.0" or "layers.0" ... and "head", with the parameters' names of
  /// transformers. Drawn weights are the same on every device and layout; biases are zero, norms
  /// one. The head is the final norm with the embedding's table (tied) or lm_head.weight; its loss
  /// is the sum of the cross-entropy over labels != -100.
  ModelSpec make_causal() const;
  /// The same body under a linear classifier (score.weight, no bias) on the final hidden state at
  /// the rightmost id that is not pad_token (without a pad_token: the rightmost position of
  /// attention_mask). The loss block returns {sum of the cross-entropy, correct predictions}.
  /// score.weight is drawn when the source lacks it, as in a directory saved from a causal model.
  /// Labels are 0 .. num_labels-1, or -100 for rows without one.
  ModelSpec make_classifier(int64_t num_labels) const;
  ModelSpec make(ModelHead head,
                 int64_t num_labels = 0) const;  ///< makes the causal model or the classifier
  /// Elements of every parameter, block by block; tied ones once, at their owner. Allocates
  /// nothing.
  std::vector<std::vector<int64_t>> parameter_sizes(ModelHead head, int64_t num_labels = 0) const;
  /// The number of elements of the model; tied ones count once.
  int64_t parameter_count(ModelHead head, int64_t num_labels = 0) const;
  void validate() const {
    config_.validate();
  }  ///< checks the description: DecoderConfig::validate()
  /// config.json for transformers; dtype is that of the weights beside it.
  std::string to_json(ModelHead head, at::ScalarType dtype = at::kFloat) const;

 private:
  DecoderConfig config_;
};

}  // namespace tessera
