// SPDX-License-Identifier: MIT
#pragma once
// Blocks of decoder-only models.
#include <memory>
#include <string>
#include <vector>

#include "lib/models/block_weights.h"
#include "lib/models/decoder_family.h"

namespace tessera {

// An embedding or a layer.
class DecoderPart : public Block {
 public:
  bool supports_packed_rows() const override { return true; }
  bool supports_kv_cache() const override { return true; }
  bool takes_cut_rows() const override { return true; }
  bool takes_fp8() const override { return true; }
  bool is_recordable(bool /*training*/) const override { return true; }
  std::vector<Parameter> parameters() override { return parameters_; }
  std::vector<Buffer> buffers() override { return buffers_; }

 protected:
  explicit DecoderPart(const BlockWeights& weights) : axis_(weights.axis()) {}

  TensorAxis axis_;
  std::vector<Parameter> parameters_;
  std::vector<Buffer> buffers_;
};

// Tables are cut by rows on a tensor axis.
constexpr TensorCut kVocabularyRows{.dim = 0, .padded = true};

std::unique_ptr<Block> make_embedding(const DecoderConfig& config, const BuildContext& context,
                                      BlockWeights weights);
// index: of the block in the model, which is the layer's number + 1.
std::unique_ptr<Block> make_layer(const DecoderConfig& config, const BuildContext& context,
                                  BlockWeights weights, size_t index);
// Final norm, and the tied table or lm_head.weight.
std::unique_ptr<Block> make_causal_head(const DecoderConfig& config, const BuildContext& context,
                                        BlockWeights weights);
// Final norm and score.weight.
std::unique_ptr<Block> make_classification_head(const DecoderConfig& config, int64_t num_labels,
                                                BlockWeights weights);

// "<table>.weight"
std::string table_name(const DecoderConfig& config);
std::string checkpoint_name(const DecoderFamily& family, const std::string& block,
                            const std::string& parameter);

}  // namespace tessera
