#include "tessera/core/micro_batch.h"

#include <ATen/ATen.h>

namespace tessera {

MicroBatch MicroBatch::to(at::Device device) const {
  auto move = [&](const at::Tensor& tensor) {
    return tensor.defined() ? tensor.to(device, /*non_blocking=*/true) : tensor;
  };
  MicroBatch moved = *this;
  moved.input_ids = move(input_ids);
  moved.labels = move(labels);
  moved.attention_mask = move(attention_mask);
  moved.loss_gradient = move(loss_gradient);
  return moved;
}

}  // namespace tessera
