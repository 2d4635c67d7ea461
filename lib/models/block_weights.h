// SPDX-License-Identifier: MIT
#pragma once
// Makes a block's parameters one after the other: from the checkpoint when there is one, else drawn
// from the block's seed. Every rank of a tensor axis makes the whole tensor and keeps its part, so
// values do not depend on the axis.
#include <functional>
#include <string>
#include <vector>

#include "lib/models/decoder_block.h"
#include "tessera/model/model_spec.h"
#include "tessera/model/tensor_parallel.h"

namespace tessera {

class BlockWeights {
 public:
  using NameFunction = std::function<std::string(const std::string& parameter)>;
  // checkpoint_name maps this block's parameter names to the checkpoint's.
  BlockWeights(const BuildContext& context, size_t block_index, NameFunction checkpoint_name);

  // Shapes are those of whole tensors; the result is the rank's part as cut says.
  at::Tensor normal(const std::string& name, at::IntArrayRef shape, double deviation,
                    const TensorCut& cut = {});
  // Drawn also when there is a checkpoint that lacks the name.
  at::Tensor optional_normal(const std::string& name, at::IntArrayRef shape, double deviation,
                             const TensorCut& cut);
  at::Tensor constant(const std::string& name, at::IntArrayRef shape, double value,
                      const TensorCut& cut = {});
  // The adapters of a product's weights, of which `names` are the modules' and [outs, in] the whole
  // shapes: none where BuildContext::lora targets none. inputs_cut: as the weights are. Several
  // equal parts of the outputs are cut alike.
  c10::SmallVector<LoraWeights, 3> adapters(const std::vector<std::string>& names,
                                            at::IntArrayRef outs, int64_t in, bool inputs_cut,
                                            int parts);
  // A tied placeholder.
  at::Tensor alias(const std::string& name, at::IntArrayRef shape, const TensorCut& cut = {});
  // The parameter made last is an embedding or a head: Parameter::fp32_state.
  void keep_fp32_state() { parameters_.back().fp32_state = true; }
  // The parameter made last is a table: Parameter::row_gradient.
  void add_rows_alone() { parameters_.back().row_gradient = true; }
  const TensorAxis& axis() const { return axis_; }

  std::vector<Parameter> take() { return std::move(parameters_); }

 private:
  at::Tensor add(const std::string& name, const at::Tensor& whole, const TensorCut& cut);
  bool pretrained() const { return context_.source != nullptr; }
  at::Tensor read(const std::string& name, at::IntArrayRef shape) const;
  at::Tensor draw(at::IntArrayRef shape, double deviation);

  BuildContext context_;
  TensorAxis axis_;
  size_t block_index_;
  uint64_t seed_;
  size_t draws_ = 0;
  NameFunction checkpoint_name_;
  std::vector<Parameter> parameters_;
};

}  // namespace tessera
