// SPDX-License-Identifier: MIT
#include "lib/testing/fuzz_agreement.h"

#include "lib/testing/fuzz_difference.h"
#include "tessera/core/error.h"

namespace tessera::testing {

void require_ranks_agree(const RunRecord& run) {
  const RankRecord& first = run.ranks.front();
  for (size_t r = 1; r < run.ranks.size(); ++r) {
    const RankRecord& rank = run.ranks[r];
    const std::string of = concat(" of rank ", r, " beside rank 0's");
    require_bits("initial parameter" + of, rank.initial, first.initial);
    for (size_t s = 0; s < first.steps.size(); ++s) {
      const StepRecord &step = rank.steps[s], &expected = first.steps[s];
      const std::string at = concat(of, " at step ", s);
      require_same("loss" + at, step.loss, expected.loss);
      require_same("target count" + at, step.targets, expected.targets);
      require_same("norm" + at, step.norm, expected.norm);
      require_bits("gradient" + at, step.gradients, expected.gradients);
      require_bits("parameter" + at, step.parameters, expected.parameters);
    }
    for (size_t e = 0; e < first.evaluations.size(); ++e) {
      require_same("evaluation loss" + of, rank.evaluations[e].loss, first.evaluations[e].loss);
    }
    require_bits("final parameter" + of, rank.final, first.final);
  }
}

}  // namespace tessera::testing
