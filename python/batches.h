// SPDX-License-Identifier: MIT
#pragma once
// Micro-batches from dictionaries of arrays, like the inputs of transformers' models.
#include <ATen/core/Tensor.h>
#include <nanobind/nanobind.h>

#include <memory>
#include <vector>

#include "python/program_model.h"
#include "tessera/core/micro_batch.h"
#include "tessera/models/language_model.h"

namespace tessera::python {

// Properties of a model on which its batches depend.
struct BatchRules {
  ModelHead head = ModelHead::kCausal;
  int64_t num_labels = 0;  // classification
  DecoderConfig config;
  at::Device device = at::kCPU;
  std::shared_ptr<const ProgramModel> program = nullptr;  // null: a built-in model
};

// Micro-batches on the rules' device from one dictionary, or a sequence of them. Copies the data.
// Throws Error(kInvalidArgument) with the micro-batch's index for what is no batch.
//
// Language models. input_ids: integers [rows, tokens]. labels: causal like input_ids, not shifted,
// -100 for none, by default the ids where the mask is 1; classification [rows]. attention_mask:
// like input_ids, 1 or True for real tokens. weights: floats like labels, which multiply the loss
// of each; causal only. position_ids or document_ids: like input_ids; rows are packed: a document
// begins at position 0, or where the id changes. Further inputs of a program by their names.
//
// Modules that return their loss: the arrays of their inputs, and target_count, by which a mean
// counts; by default the labels, or the rows.
std::vector<MicroBatch> batches_of(nanobind::handle batches, const BatchRules& rules);

}  // namespace tessera::python
