// SPDX-License-Identifier: MIT
#pragma once
// Share of a table's tokens that are loss targets.
#include "tessera/data/token_table.h"

namespace tessera {

// Causal: targets per token, over some thousand evenly spaced rows. 1 for other tasks and an empty
// table. For block_times().
double supervised_share(const TokenTable& rows);

// True if any row has a target; a causal row's first token never is one.
bool has_target(const TokenTable& rows);

}  // namespace tessera
