// SPDX-License-Identifier: MIT
#pragma once
// Runs a fuzzer case on in-process ranks and records the results.
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

// Work of all ranks by step.
struct FuzzWork {
  std::vector<GlobalBatch> steps;
  GlobalBatch evaluation;  // equal at every evaluation
};
FuzzWork make_work(const FuzzCase& fuzz_case, const FuzzModel& model);
// True if any rank's input differs as FuzzCase::refuse demands.
bool disturbs(const FuzzCase& fuzz_case, const FuzzWork& work);

struct RunRecord {
  std::vector<RankRecord> ranks;  // by world rank
  // Moments in fewer than 32 bits after each step: by "block.parameter kind"; see check_moments().
  std::vector<Named> moments;
  std::string error;              // of any rank; empty: none
  bool invalid_argument = false;  // the error is Error(kInvalidArgument)
  bool before_attached = false;   // no rank had finished attach()
  // other_kernels: not on the CPU. rounded_additions: a transport that rounds every 16-bit
  // addition, not only the sum.
  bool other_kernels = false, rounded_additions = false;
};

// A range of steps, with the state to start from and to save.
struct RunPart {
  size_t first = 0, end = std::numeric_limits<size_t>::max();
  const WholeState* from = nullptr;
  WholeState* to = nullptr;
};
// Device of the ranks, and their strategies' factory.
struct FuzzTarget {
  const FuzzStrategyFactory& make;
  at::Device device = at::kCPU;
};
// quiet: nothing is visited between steps.
RunRecord run_case(const FuzzTarget& target, const FuzzCase& fuzz_case, const FuzzModel& model,
                   const FuzzWork& work, bool quiet, const RunPart& part = {});

// The same micro-batches in the same order, dealt to this many data ranks.
FuzzWork dealt_out(const FuzzWork& work, int data_ranks);

}  // namespace tessera::testing
