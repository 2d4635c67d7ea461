// SPDX-License-Identifier: MIT
#pragma once
#include <vector>

#include "lib/plan/rank_sequences.h"

namespace tessera {

// Gradients of an update that are not summed exactly once over the ranks that share them. Those are
// all of the data axis, ranks of the tensor axis where the placement makes gradients partial sums,
// and all stages that hold the parameter.
std::vector<CommunicationProblem> find_wrong_sums(const DryStep& step,
                                                  const RankSequences& sequences);

}  // namespace tessera
