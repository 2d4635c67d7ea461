// SPDX-License-Identifier: MIT
#pragma once
#include <vector>

#include "lib/plan/rank_sequences.h"

namespace tessera {

// Gradients that an update takes and that are not summed once over exactly the ranks that share
// them: all of the data axis, ranks of the tensor axis where the block's placement says that their
// gradients are parts of a sum, and all stages that hold the parameter.
std::vector<CommunicationProblem> find_wrong_sums(const DryStep& step,
                                                  const RankSequences& sequences);

}  // namespace tessera
