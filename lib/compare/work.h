// SPDX-License-Identifier: MIT
#pragma once
// What a row computes, apart from how: only rows that do the same work must have the same numbers.
#include <map>
#include <string>

#include "lib/settings/flags.h"

namespace tessera::programs {

// Every flag that changes the numbers of a run, by name. Layout, micro-batches, packing and output
// are left out: they change where and when, never what. "global_batch_size", the rows of an
// optimizer step, is added by settle().
using Work = std::map<std::string, std::string>;

Work work_of(const FlagSet& flags);

// "dtype bf16, not fp32; global_batch_size 16, not 8": how a row's work differs from another's; ""
// when it does not.
std::string difference(const Work& work, const Work& other);

}  // namespace tessera::programs
