// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A model on one device without any strategy, for inference and as the reference of tests.
#include <memory>
#include <string>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera {

/// All blocks of a model. Tied parameters share storage and gradient; gradients start as zeros.
class WholeModel {
 public:
  /// Builds every block on context.device.
  WholeModel(const ModelSpec& spec, const BuildContext& context);

  /// The last block's output: see Block.
  at::Tensor forward(const MicroBatch& micro_batch, const BlockContext& context = {});
  /// The last block's scores. Throws Error(kInvalidArgument) unless it is a Head.
  at::Tensor logits(const MicroBatch& micro_batch, const BlockContext& context = {});
  /// Parameters under their checkpoint names; tied ones once, at their owner.
  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<std::unique_ptr<Block>>& blocks() const {
    return blocks_;
  }  ///< the blocks in order

 private:
  at::Tensor run_body(const MicroBatch& micro_batch, const BlockContext& context);

  std::string name_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Parameter> parameters_;
};

}  // namespace tessera
