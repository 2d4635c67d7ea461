#pragma once
// The input of one forward pass. Data loaders make it, blocks read it; it knows nothing of either.
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace tessera {

constexpr int64_t kIgnoredLabel = -100;

// All tensors live on the rank's device. The counts are host values, so no step ever asks the
// device for them.
struct MicroBatch {
  at::Tensor input_ids;  // [batch, sequence] int64; for adapted torch modules whatever their first
                         // block takes
  // Causal language models: [batch, sequence] int64, already shifted: labels[b][s] is the target of
  // position s, kIgnoredLabel where none is supervised. Classification: [batch] int64.
  at::Tensor labels;
  // [batch, sequence] bool, true for real tokens. Undefined when there is no padding, and when
  // padding changes no supervised number (at the end of rows, under causal attention).
  at::Tensor attention_mask;
  int64_t sample_count = 0;  // real rows, without rows added to fill a batch
  int64_t token_count = 0;   // all positions, padding included
  int64_t target_count = 0;  // labels that are not kIgnoredLabel
  // d(objective)/d(loss sum): a scalar fp32 tensor that the strategy sets before the last block
  // runs. A loss that computes its gradient during forward reads it there; for all others it is the
  // seed of backward.
  at::Tensor loss_gradient;
  // Differs for every step, micro-batch and data rank, and is the same on all ranks that work on
  // one micro-batch: whatever a block draws at random, it draws from this and its own index.
  // Strategies set it.
  uint64_t seed = 0;
  // Set by strategies in steps, not in evaluations: dropout is on, also where a forward pass runs
  // without gradients because backward will run it again.
  bool training = false;

  MicroBatch to(at::Device device) const;  // copies asynchronously from pinned memory
};

// A micro-batch with its counts. Targets are, of integral labels, those that are not kIgnoredLabel;
// of floating ones (regression) and without labels (the loss looks at the inputs), the rows. Tokens
// are all elements of int64 inputs, else the rows. It reads the labels: call it where they are
// made, before they are copied to a GPU. Throws Error(kInvalidArgument) unless inputs and labels
// have the same number of rows (dimension 0).
MicroBatch make_micro_batch(at::Tensor inputs, at::Tensor labels);

// Throws Error(kInvalidArgument) when the micro-batch has targets but a target_count of 0, on which
// a step would train on the sum of the loss instead of its mean. Labels that are all ignored are
// legal. Reads the labels only where target_count is 0, so that no other step waits for a device.
void check_counts(const MicroBatch& micro_batch);

}  // namespace tessera
