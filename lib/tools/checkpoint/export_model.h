// SPDX-License-Identifier: MIT
#pragma once
// Exports the model of a checkpoint as a Hugging Face directory.
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <string>

#include "tessera/checkpoint/checkpoint.h"

namespace tessera::programs {

struct ExportOptions {
  std::string directory;
  std::string tokenizer;  // directory whose tokenizer files are copied; "": none
  at::ScalarType dtype = at::kFloat;
  int64_t max_shard_bytes = int64_t{5} * 1000 * 1000 * 1000;
};

// Writes parameters and buffers under transformers' names, one at a time in memory, and the run's
// config.json ("model" of Checkpoint::run(), docs/reference/formats.md). Tied weights are stored
// once, under their owner, as by transformers. For a run with adapters, writes their directory.
// Returns the number of tensors. Throws Error(kDataLoss) when the run has no configuration or a
// tensor has no name.
int64_t export_model(const Checkpoint& checkpoint, const ExportOptions& options);

}  // namespace tessera::programs
