// SPDX-License-Identifier: MIT
#include "lib/plan/block_outputs.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "lib/core/meta.h"
#include "tessera/backends/tensor/tensor_parallel.h"
#include "tessera/comm/fake_mesh.h"

namespace tessera {

BlockOutputs::BlockOutputs(const ModelSpec& model, int tensor_ranks, int tensor_rank,
                           const ParallelConfig& parallel)
    : model_(model),
      dtype_(parallel.precision.parameter),
      axis_(fake_communicator(tensor_rank, tensor_ranks)) {
  if (tensor_ranks == 1) return;
  model_ = TensorParallel(*axis_, {.sequence_parallel = parallel.sequence_parallel})(model_);
}
BlockOutputs::~BlockOutputs() = default;

at::Tensor BlockOutputs::of(size_t block, const MicroBatch& micro_batch) {
  const at::NoGradGuard no_grad;
  const MetaMemoryCounter apart;  // nobody else counts this
  while (blocks_.size() < model_.block_count()) {
    const BlockBuilder& builder = model_.blocks[blocks_.size()];
    blocks_.push_back(builder.build({.device = at::kMeta}));
    for (const Parameter& parameter : builder.parameters_of(*blocks_.back())) {
      parameter.tensor.set_data(parameter.tensor.to(dtype_));
    }
  }
  MicroBatch batch = micro_batch;
  batch.so_far = {};
  std::vector<int64_t> key = batch.input_ids.sizes().vec();
  for (const at::Tensor& tensor : {batch.labels, batch.head_positions}) {
    key.push_back(-1);
    if (tensor.defined()) key.insert(key.end(), tensor.sizes().begin(), tensor.sizes().end());
  }
  std::vector<at::Tensor>& outputs = outputs_[key];
  while (outputs.size() <= block) {
    const at::Tensor input = outputs.empty() ? at::Tensor() : outputs.back();
    outputs.push_back(blocks_[outputs.size()]->forward(input, batch));
  }
  return outputs[block];
}

}  // namespace tessera
