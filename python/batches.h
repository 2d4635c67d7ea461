// SPDX-License-Identifier: MIT
#pragma once
// Micro-batches from dictionaries of arrays, like the inputs of transformers' models.
#include <ATen/core/Tensor.h>
#include <nanobind/nanobind.h>

#include <vector>

#include "tessera/core/micro_batch.h"
#include "tessera/models/language_model.h"

namespace tessera::python {

// Properties of a model on which its batches depend.
struct BatchRules {
  ModelHead head = ModelHead::kCausal;
  int64_t num_labels = 0;  // classification
  DecoderConfig config;
  at::Device device = at::kCPU;
};

// Micro-batches on the rules' device from one dictionary, or a sequence of them. input_ids:
// integers [rows, tokens]. labels: causal like input_ids, not shifted, -100 for none, by default
// the ids where the mask is 1; classification [rows]. attention_mask: like input_ids, 1 or True for
// real tokens. Copies the data. Throws Error(kInvalidArgument) with the micro-batch's index for
// anything else.
std::vector<MicroBatch> batches_of(nanobind::handle batches, const BatchRules& rules);

}  // namespace tessera::python
