// SPDX-License-Identifier: MIT
#include "backends/common/timed_pass.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "lib/core/clock.h"
#include "tessera/core/device.h"

namespace tessera {

std::unique_ptr<Block> build_for_timing(const BlockBuilder& builder, const BuildContext& context,
                                        at::ScalarType dtype) {
  std::unique_ptr<Block> block = builder.build(context);
  for (Parameter& parameter : builder.parameters_of(*block)) {
    at::Tensor& tensor = parameter.tensor;
    tensor.set_data(tensor.detach().to(context.device, dtype).contiguous());
    if (tensor.requires_grad()) tensor.mutable_grad() = at::zeros_like(tensor);
  }
  return block;
}

TimedPass timed_pass(Block& block, const at::Tensor& hidden, const MicroBatch& micro_batch,
                     const BlockContext& context, at::Device device) {
  synchronize_device(device);
  const double begin = now_s();
  at::Tensor input;
  if (hidden.defined()) {
    input = hidden.detach();
    input.set_requires_grad(at::isFloatingType(input.scalar_type()));
  }
  const at::Tensor output = block.forward(input, micro_batch, context);
  if (output.requires_grad()) torch::autograd::backward({output}, {at::ones_like(output)});
  synchronize_device(device);
  return {now_s() - begin, output.detach()};
}

}  // namespace tessera
