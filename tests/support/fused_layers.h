// SPDX-License-Identifier: MIT
#pragma once
// A language model with hand-scheduled layers, as on GPUs.
#include <memory>
#include <utility>

#include "lib/model/linear_weights.h"
#include "tessera/model/model_spec.h"

namespace tessera::testing {

class FusedLayer final : public Block, public LinearWeights {
 public:
  explicit FusedLayer(std::unique_ptr<Block> layer) : layer_(std::move(layer)) {}
  at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch,
                     const BlockContext& context) override {
    return layer_->forward(hidden, micro_batch, fused(context));
  }
  bool defers_gradients(const at::Tensor& hidden, const BlockContext& context) const override {
    return layer_->defers_gradients(hidden, fused(context));
  }
  bool supports_packed_rows() const override { return layer_->supports_packed_rows(); }
  bool takes_cut_rows() const override { return layer_->takes_cut_rows(); }
  bool takes_fp8() const override { return layer_->takes_fp8(); }
  bool supports_kv_cache() const override { return layer_->supports_kv_cache(); }
  std::vector<Parameter> parameters() override { return layer_->parameters(); }
  std::vector<Buffer> buffers() override { return layer_->buffers(); }
  std::vector<std::vector<std::string>> linear_weights(const Fp8Layers& of) override {
    return linear_weights_of(*layer_, of);
  }

 private:
  static BlockContext fused(BlockContext context) {
    context.fused_layers = true;
    return context;
  }

  std::unique_ptr<Block> layer_;
};

inline ModelSpec with_fused_layers(ModelSpec model) {
  for (size_t i = 1; i + 1 < model.blocks.size(); ++i) {
    model.blocks[i].build = [build = model.blocks[i].build](const BuildContext& context) {
      return std::make_unique<FusedLayer>(build(context));
    };
  }
  return model;
}

}  // namespace tessera::testing
