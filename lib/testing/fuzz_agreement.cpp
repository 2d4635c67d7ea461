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
      require_bits("buffer" + at, step.buffers, expected.buffers);
    }
    for (size_t e = 0; e < first.evaluations.size(); ++e) {
      require_same("evaluation loss" + of, rank.evaluations[e].loss, first.evaluations[e].loss);
    }
    require_bits("final parameter" + of, rank.final, first.final);
  }
}

std::string compare_runs(const RunRecord& quiet, const RunRecord& visited) {
  return text_of_difference([&] {
    for (size_t r = 0; r < quiet.ranks.size(); ++r) {
      const RankRecord &a = quiet.ranks[r], &b = visited.ranks[r];
      for (size_t s = 0; s < a.steps.size(); ++s) {
        require_same(concat("quiet run: loss at step ", s), a.steps[s].loss, b.steps[s].loss);
        require_same(concat("quiet run: norm at step ", s), a.steps[s].norm, b.steps[s].norm);
      }
      require_bits("quiet run: final parameter", a.final, b.final);
      for (size_t e = 0; e < a.evaluations.size(); ++e) {
        require_same("quiet run: evaluation loss", a.evaluations[e].loss, b.evaluations[e].loss);
      }
    }
  });
}

}  // namespace tessera::testing
