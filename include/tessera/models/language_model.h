#pragma once
// One type for every language model that is built in: what programs that take any of them hold.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "tessera/model/model_spec.h"
#include "tessera/models/bloom.h"
#include "tessera/models/gpt2.h"
#include "tessera/models/language_model_config.h"
#include "tessera/models/llama.h"

namespace tessera {

class Json;

// The configuration of a model of any architecture, and the way from it to a ModelSpec. A value:
// copies are independent.
class LanguageModel {
 public:
  using Config = std::variant<BloomConfig, Gpt2Config, LlamaConfig>;

  LanguageModel() = default;
  LanguageModel(Config config) : config_(std::move(config)) {}  // NOLINT: a configuration is one

  // The architecture is that of "model_type". Throws Error(kDataLoss) with key and byte.
  static LanguageModel from_json(const Json& json);
  static LanguageModel from_file(const std::string& path);
  static LanguageModel from_directory(const std::string& path);  // its config.json
  // For random weights. Throws Error(kInvalidArgument) with the known names.
  static LanguageModel preset(const std::string& name);
  static std::vector<std::string> preset_names();

  const Config& architecture() const { return config_; }
  const LanguageModelConfig& config() const;
  LanguageModelConfig& config();

  void validate() const;
  ModelSpec make_causal() const;
  ModelSpec make_classifier(int64_t num_labels) const;
  ModelSpec make(ModelHead head, int64_t num_labels = 0) const;
  // Elements of every parameter, block by block; tied ones once, at their owner. Allocates nothing.
  std::vector<std::vector<int64_t>> parameter_sizes(ModelHead head, int64_t num_labels = 0) const;
  int64_t parameter_count(ModelHead head, int64_t num_labels = 0) const;
  // config.json for transformers; dtype is that of the weights beside it.
  std::string to_json(ModelHead head, at::ScalarType dtype = at::kFloat) const;

 private:
  Config config_;
};

}  // namespace tessera
