// SPDX-License-Identifier: MIT
#pragma once
// Work of a row, independent of its layout: only rows of the same work must have equal numbers.
#include <map>
#include <string>

#include "lib/settings/flags.h"

namespace tessera::programs {

// Every flag that changes a run's numbers, by name. Layout, micro-batches, packing and output are
// left out. settle() adds "global_batch_size", the rows per optimizer step.
using Work = std::map<std::string, std::string>;

Work work_of(const FlagSet& flags);

// Differences of two rows' work, "dtype bf16, not fp32; global_batch_size 16, not 8"; "" for none.
std::string difference(const Work& work, const Work& other);

}  // namespace tessera::programs
