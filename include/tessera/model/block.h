#pragma once
// The smallest unit a strategy moves: a piece of a model with parameters and a forward function.
#include <ATen/core/Tensor.h>
#include <c10/util/accumulate.h>

#include <string>
#include <vector>

#include "tessera/core/micro_batch.h"

namespace tessera {

// How a parameter's local tensor relates to the whole one under tensor parallelism. The default:
// every tensor rank holds all of it.
struct TensorShard {
  int dim = -1;  // the local tensor is the rank's slice of this dimension; -1: not sliced
  // The whole dimension consists of this many equal parts, and the local one of a slice of each in
  // the same order: 3 for queries, keys and values stored one after the other.
  int parts = 1;
  int64_t full_size = 0;  // of the dimension in the whole parameter, without padding

  bool replicated() const { return dim < 0; }
  // Elements of the whole parameter, given the shape of the local tensor.
  int64_t whole_numel(at::IntArrayRef local) const {
    const int64_t numel = c10::multiply_integers(local);
    return replicated() || numel == 0 ? numel : numel / local[dim] * full_size;
  }
};

// A named leaf tensor of a block. Strategies replace its storage (Tensor::set_data) and its
// gradient, never the handle.
struct Parameter {
  std::string name;          // unique inside the block, e.g. "self_attention.dense.weight"
  at::Tensor tensor;         // leaf with requires_grad
  bool weight_decay = true;  // false for biases and norm weights
  TensorShard shard;
  // Ranks of the tensor and pipeline axes that hold this very value: gradient norms count it once.
  int copies = 1;
};

// A tensor of a block that is no parameter: nothing trains it, but it is part of the model.
struct Buffer {
  std::string name;  // unique inside the block, also among its parameters
  at::Tensor tensor;
  // Blocks may change it in forward (running statistics) when a data rank is named whose values
  // are the model's; -1: constant, and equal on all ranks.
  int data_rank = -1;
};

// Blocks of a model run in order; each takes the previous one's output. The last block returns a
// 1-D fp32 tensor whose element 0 is the SUM of the loss over the micro-batch's supervised targets;
// further elements are counters summed over batches (element 1: correct predictions, when the block
// knows them) and carry no gradient.
//
// Contract with strategies [docs/extending.md]: parameters hold their values between before_forward
// and after_forward and between before_backward and after_backward, and nowhere else. During
// backward every parameter's .grad() is a defined tensor to be ADDED to: autograd does so by
// itself; a hand-written block may write there directly and return no gradient to autograd. For the
// last block that already holds while its forward runs with gradients enabled, and
// micro_batch.loss_gradient is set: backward's incoming gradient of element 0 is that same scalar.
class Block {
 public:
  virtual ~Block() = default;
  // hidden: the previous block's output; for the first block undefined (it reads
  // micro_batch.input_ids).
  virtual at::Tensor forward(const at::Tensor& hidden, const MicroBatch& micro_batch) = 0;
  // Always the same handles in the same order. One whose tensor needs no gradient is frozen.
  virtual std::vector<Parameter> parameters() = 0;
  // On the rank's device, kept whole on every rank that has the block.
  virtual std::vector<Buffer> buffers() { return {}; }
};

}  // namespace tessera
