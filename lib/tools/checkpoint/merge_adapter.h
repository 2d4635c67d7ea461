// SPDX-License-Identifier: MIT
#pragma once
// Merges a base model and its adapters into one Hugging Face directory.
#include <cstdint>
#include <string>
#include <vector>

namespace tessera::programs {

struct MergeOptions {
  std::string base, adapter, directory;
  int64_t max_shard_bytes = int64_t{5} * 1000 * 1000 * 1000;
};

struct MergedAdapter {
  int64_t tensors = 0, adapted = 0, replaced = 0;
  std::vector<std::string> skipped;  // files of the base that were not copied, with reasons
};

// Writes every weight of the base in its dtype: with an adapter W + scale B A, computed in fp32;
// for a module trained in full, the adapter's own weight. Copies the base's other files, except
// hidden ones and links out of it. Tensors are in memory one at a time. Throws Error(kDataLoss)
// when the adapter belongs to another model.
MergedAdapter merge_adapter(const MergeOptions& options);

}  // namespace tessera::programs
