#pragma once
// What decoder-only models share: embedding, equal layers, and a head with its loss.
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lib/models/block_weights.h"
#include "tessera/models/language_model_config.h"

namespace tessera {

struct DecoderParts {
  LanguageModelConfig config;
  std::string layer_prefix;  // layers are the blocks "<prefix>0", "<prefix>1" ...
  std::string table;         // the embedding's parameter that a tied head shares, e.g. "wte.weight"
  // In a Hugging Face checkpoint everything but the heads' own weights has it before its name.
  std::string checkpoint_prefix;
  std::function<std::unique_ptr<Block>(const BuildContext&, BlockWeights)> embedding;
  // `index` is the block's place in the model: the layer's number + 1.
  std::function<std::unique_ptr<Block>(const BuildContext&, BlockWeights, size_t index)> layer;
  // Of the norm before the head: "<final_norm>.weight", and ".bias" unless it is an RMS norm.
  std::string final_norm;
  bool rms_norm = false;
  double epsilon = 1e-5;
  int64_t attention_width = 0;  // columns of all heads together
  int64_t tensor_divisor = 0;   // see ModelSpec

  std::string checkpoint_name(const std::string& block, const std::string& parameter) const;
};

// An embedding or a layer.
class DecoderPart : public Block {
 public:
  explicit DecoderPart(const BlockWeights& weights) : axis_(weights.axis()) {}
  bool takes_packed_rows() const override { return true; }
  bool continues_rows() const override { return true; }
  std::vector<Parameter> parameters() override { return parameters_; }

 protected:
  TensorAxis axis_;
  std::vector<Parameter> parameters_;
};

template <typename Layer, typename Config>
auto layers_of(const Config& config) {
  return [config](const BuildContext& context, BlockWeights weights, size_t index) {
    return std::make_unique<Layer>(config, context, std::move(weights), index);
  };
}
template <typename Embedding, typename Config>
auto embedding_of(const Config& config) {
  return [config](const BuildContext& context, BlockWeights weights) {
    return std::make_unique<Embedding>(config, context, std::move(weights));
  };
}

// Tensor parallelism cuts tables by rows.
constexpr TensorCut kVocabularyRows{.dim = 0, .padded = true};

// The head block holds the final norm, and the table (tied) or lm_head.weight.
ModelSpec assemble_causal(const DecoderParts& parts);

// The head block holds the final norm and score.weight, without bias, on the state at the rightmost
// id that is not pad_token (without a pad_token: the rightmost position of attention_mask).
ModelSpec assemble_classifier(const DecoderParts& parts, int64_t num_labels);

}  // namespace tessera
