// SPDX-License-Identifier: MIT
#pragma once
// A base model and its adapters as one Hugging Face directory.
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
  std::vector<std::string> skipped;  // files of the base that were not copied, and why
};

// Every weight of the base in its dtype, with W + scale B A, reckoned in fp32, where there is an
// adapter, and the adapter's own where a module was trained in full; and every other file of the
// base but hidden ones and links out of it. Tensors are in memory one at a time. Throws
// Error(kDataLoss) when the adapter is of another model.
MergedAdapter merge_adapter(const MergeOptions& options);

}  // namespace tessera::programs
