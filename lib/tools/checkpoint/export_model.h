// SPDX-License-Identifier: MIT
#pragma once
// The model of a checkpoint as a Hugging Face directory.
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

// Parameters and buffers, one at a time in memory, under the names that transformers knows, with
// the config.json that the run has kept ("model" of Checkpoint::run(), docs/reference/formats.md).
// Tied weights are stored once, at their owner, as transformers does. Returns the number of
// tensors. Of a run with adapters: the directory of its adapters. Throws Error(kDataLoss) when the
// run has kept no configuration or a tensor has no name.
int64_t export_model(const Checkpoint& checkpoint, const ExportOptions& options);

}  // namespace tessera::programs
