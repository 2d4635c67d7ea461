// SPDX-License-Identifier: MIT
#pragma once
// How many of a table's tokens a loss counts.
#include "tessera/data/token_table.h"

namespace tessera {

// Causal: targets a token, over at most some thousand rows that lie evenly in the table; else, and
// for an empty table, 1. What block_times() asks for.
double supervised_share(const TokenTable& rows);

// Whether a loss counts any of the rows, which a causal row's first token never is.
bool has_target(const TokenTable& rows);

}  // namespace tessera
