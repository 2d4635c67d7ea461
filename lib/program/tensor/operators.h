// SPDX-License-Identifier: MIT
#pragma once
// Operators between the ranks of a tensor axis, as graphs of ranks have them.
#include <vector>

#include "lib/program/own_operator.h"

namespace tessera::program {

constexpr const char* kEnterRanks = "tessera.enter_ranks";        // x
constexpr const char* kSumOfRanks = "tessera.sum_of_ranks";       // x
constexpr const char* kGatherColumns = "tessera.gather_columns";  // x, columns
// x, dim, parts, ranks, rank, whether zeros pad the last part
constexpr const char* kPartOf = "tessera.part_of";

// ids, the rank's rows of a table, the row without a gradient or -1, rows of the whole table, rank:
// zeros for ids of other ranks
constexpr const char* kEmbeddingOfPart = "tessera.embedding_of_part";

const std::vector<OwnOperator>& tensor_operators();

}  // namespace tessera::program
