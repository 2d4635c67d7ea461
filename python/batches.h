// SPDX-License-Identifier: MIT
#pragma once
// Micro-batches from dictionaries of arrays, as transformers' models take them.
#include <ATen/core/Tensor.h>
#include <nanobind/nanobind.h>

#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/models/language_model.h"

namespace tessera::python {

// What of a model its batches depend on.
struct BatchRules {
  ModelHead head = ModelHead::kCausal;
  int64_t num_labels = 0;  // classification
  DecoderConfig config;
  at::Device device = at::kCPU;
};

// One dictionary, or a sequence of them: micro-batches on the rules' device. Keys: input_ids
// [rows, tokens] of integers; labels: causal as input_ids, not shifted, -100 where none is
// supervised, without them the ids where the mask is 1; classification [rows]; attention_mask as
// input_ids, 1 or True for real tokens. The numbers are copied. Throws Error(kInvalidArgument),
// with the micro-batch's place, for anything else.
std::vector<MicroBatch> batches_of(nanobind::handle batches, const BatchRules& rules);

}  // namespace tessera::python
