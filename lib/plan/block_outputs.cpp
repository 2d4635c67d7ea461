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
  while (outputs_.size() <= block) {
    const BlockBuilder& builder = model_.blocks[outputs_.size()];
    const auto built = builder.build({.device = at::kMeta});
    for (const Parameter& parameter : builder.parameters_of(*built)) {
      parameter.tensor.set_data(parameter.tensor.to(dtype_));
    }
    const at::Tensor input = outputs_.empty() ? at::Tensor() : outputs_.back();
    outputs_.push_back(built->forward(input, micro_batch));
  }
  return outputs_[block];
}

}  // namespace tessera
