// SPDX-License-Identifier: MIT
#pragma once
// Runs one case of the fuzzer on in-process ranks and keeps what came out.
#include <ATen/core/Tensor.h>

#include <limits>
#include <string>
#include <vector>

#include "lib/testing/fuzz.h"
#include "lib/testing/oracle.h"
#include "lib/testing/player.h"
#include "lib/testing/whole_state.h"

namespace tessera::testing {

OptimizerFactory optimizer_of(const FuzzCase& fuzz_case);

// What all ranks work on, by step.
struct FuzzWork {
  std::vector<GlobalBatch> steps;
  GlobalBatch evaluation;  // the same every time
};
FuzzWork make_work(const FuzzCase& fuzz_case, const FuzzModel& model);
// Whether any rank is handed something that FuzzCase::refuse speaks of.
bool disturbs(const FuzzCase& fuzz_case, const FuzzWork& work);

struct RunRecord {
  std::vector<RankRecord> ranks;  // by world rank
  // By step of the work, where moments are in fewer bits than 32: by "block.parameter kind", what
  // was left of them after the step; see check_moments().
  std::vector<Named> moments;
  std::string error;              // of any rank, empty: none
  bool invalid_argument = false;  // the error's code
  bool before_attached = false;   // and no rank had finished attach()
  // Of a run elsewhere: not on the CPU; over a transport that rounds every addition of 16-bit
  // values, not only the sum.
  bool other_kernels = false, rounded_additions = false;
};

// Some of a case's steps, from a state that is given and to one that is taken.
struct RunPart {
  size_t first = 0, end = std::numeric_limits<size_t>::max();
  const WholeState* from = nullptr;
  WholeState* to = nullptr;
};
// Where ranks run, and what makes their strategies.
struct RunPlace {
  const FuzzStrategyFactory& make;
  at::Device device = at::kCPU;
};
// quiet: nothing is visited between the steps.
RunRecord run_case(const RunPlace& place, const FuzzCase& fuzz_case, const FuzzModel& model,
                   const FuzzWork& work, bool quiet, const RunPart& part = {});

// The same micro-batches in the same order for as many data ranks.
FuzzWork dealt_out(const FuzzWork& work, int data_ranks);

}  // namespace tessera::testing
