// SPDX-License-Identifier: MIT
#pragma once
// Makes a block's parameters in order: from the checkpoint, else drawn from the block's seed. Every
// rank of a tensor axis makes the whole tensor and keeps its shard, so values do not depend on the
// axis.
#include <functional>
#include <string>
#include <vector>

#include "lib/models/decoder_block.h"
#include "tessera/model/lora.h"
#include "tessera/model/model_spec.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {

class BlockWeights {
 public:
  using NameFunction = std::function<std::string(const std::string& parameter)>;
  // checkpoint_name maps this block's parameter names to the checkpoint's.
  BlockWeights(const BuildContext& context, size_t block_index, NameFunction checkpoint_name);

  // Whether the following tensors are cut over the expert axis, if there is one, by dimension 0;
  // otherwise by their `cut` over the tensor axis.
  void of_experts(bool of_experts) { of_experts_ = of_experts && expert_axis_.size() > 1; }

  // Shapes are those of whole tensors; the result is the rank's shard by `cut`.
  at::Tensor normal(const std::string& name, at::IntArrayRef shape, double deviation,
                    const TensorCut& cut = {});
  // Drawn if the checkpoint lacks the name.
  at::Tensor optional_normal(const std::string& name, at::IntArrayRef shape, double deviation,
                             const TensorCut& cut);
  at::Tensor constant(const std::string& name, at::IntArrayRef shape, double value,
                      const TensorCut& cut = {});
  // Adapters of a product's weights; empty if BuildContext::lora has none. names: modules; [outs,
  // in]: whole shapes. inputs_cut: as for the weights. Equal parts of the outputs are cut alike;
  // parts 0: nothing is cut.
  c10::SmallVector<LoraWeights, 3> adapters(const std::vector<std::string>& names,
                                            at::IntArrayRef outs, int64_t in, bool inputs_cut,
                                            int parts);
  // Adapters of experts' layers in one tensor of all experts: A [experts, r, in] and B [experts,
  // out, r] each. name: of that tensor; shape: [experts, sum of the layers' outputs, in]. With
  // LoraRule::target_parameters they are tensor_adapters().
  c10::SmallVector<LoraWeights, 2> expert_adapters(const std::string& name, at::IntArrayRef shape,
                                                   bool inputs_cut);
  // The same of the tensor as a whole, one adapter if LoraRule::target_parameters has it; its
  // outputs are two parts unless inputs_cut.
  c10::SmallVector<LoraWeights, 2> tensor_adapters(const std::string& name, at::IntArrayRef shape,
                                                   bool inputs_cut);
  // fp32, not trained: from the checkpoint, else zeros.
  Buffer buffer(const std::string& name, at::IntArrayRef shape) const;
  // Placeholder for a tied parameter.
  at::Tensor alias(const std::string& name, at::IntArrayRef shape, const TensorCut& cut = {});
  // Sets Parameter::fp32_state of the last parameter, an embedding or head.
  void keep_fp32_state() { parameters_.back().fp32_state = true; }
  // Sets Parameter::weight_decay of the last parameter; matrices alone decay otherwise.
  void decays(bool decays) { parameters_.back().weight_decay = decays; }
  // The parameter made last is a table: Parameter::row_gradient.
  void add_rows_alone() { parameters_.back().row_gradient = true; }
  const TensorAxis& axis() const { return axis_; }

  std::vector<Parameter> take() { return std::move(parameters_); }

 private:
  LoraMatrices draw_of_experts(const std::string& layer, int64_t experts, int64_t out,
                               int64_t in) const;
  at::Tensor add(const std::string& name, const at::Tensor& whole, const TensorCut& cut);
  bool pretrained() const { return context_.source != nullptr; }
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const;
  at::Tensor draw(at::IntArrayRef shape, double deviation);

  BuildContext context_;
  TensorAxis axis_, expert_axis_;
  bool of_experts_ = false;
  size_t block_index_;
  uint64_t seed_;
  size_t draws_ = 0;
  NameFunction checkpoint_name_;
  std::vector<Parameter> parameters_;
};

}  // namespace tessera
