// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// A model built in one piece on one device, without any strategy: what tests compare with and what
/// inference uses.
#include <memory>
#include <string>
#include <vector>

#include "tessera/model/model_spec.h"

namespace tessera {

/// Owns every block. Tied parameters share storage and gradient. Parameters have zero gradients
/// from the start.
class WholeModel {
 public:
  /// Builds every block on context.device.
  WholeModel(const ModelSpec& spec, const BuildContext& context);

  /// What the last block returns: see Block.
  at::Tensor forward(const MicroBatch& micro_batch, const BlockContext& context = {});
  /// Throws Error(kInvalidArgument) when the last block is not a Head.
  at::Tensor logits(const MicroBatch& micro_batch, const BlockContext& context = {});
  /// Names are the checkpoint's; tied parameters appear once, at their owner.
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
