#pragma once
// Runs one case of the fuzzer on in-process ranks and keeps what came out.
#include <ATen/core/Tensor.h>

#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lib/testing/fuzz.h"
#include "lib/testing/oracle.h"
#include "lib/testing/whole_state.h"

namespace tessera::testing {

// What all ranks work on, by step.
struct FuzzWork {
  std::vector<GlobalBatch> steps;
  GlobalBatch evaluation;  // the same every time
};
FuzzWork make_work(const FuzzCase& fuzz_case, const FuzzModel& model);
// Whether any rank is handed something that FuzzCase::refuse speaks of.
bool disturbs(const FuzzCase& fuzz_case, const FuzzWork& work);

struct StepRecord {
  double loss = 0, targets = 0, norm = 0, clip = 1, update_scale = 1, learning_rate = 0;
  std::optional<std::vector<double>> counters;  // where they are reported
  bool skipped = false;
  // fp32, on the CPU; gradients still loss-scaled, parameters after the step. Empty in quiet runs.
  std::map<std::string, at::Tensor> gradients, parameters;
};
struct EvaluationRecord {
  size_t steps_done = 0;
  double loss = 0, targets = 0;
  std::vector<double> counters;
  std::optional<double> loss_of_scores;  // of predict(), computed here; where there are scores
};
struct RankRecord {
  std::map<std::string, at::Tensor> initial, final;
  std::vector<StepRecord> steps;
  std::vector<EvaluationRecord> evaluations;
  StrategyMemory memory;  // at the end
};
struct RunRecord {
  std::vector<RankRecord> ranks;  // by world rank
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
// quiet: nothing is visited between the steps.
RunRecord run_case(const FuzzStrategyFactory& make, const FuzzCase& fuzz_case,
                   const FuzzModel& model, const FuzzWork& work, bool quiet,
                   const RunPart& part = {});

// The same micro-batches in the same order for as many data ranks.
FuzzWork dealt_out(const FuzzWork& work, int data_ranks);

}  // namespace tessera::testing
