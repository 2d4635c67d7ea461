// SPDX-License-Identifier: MIT
#pragma once
// Which layout a model should have on given devices.
#include <string>
#include <vector>

#include "lib/tools/plan/plan.h"

namespace tessera::programs {

struct Candidate {
  RunPlan run;
  double needed = 0;  // bytes of a rank
  std::string flags;  // what sets it apart from the others, as a command line takes it
};

struct Fit {
  int64_t tried = 0;
  std::vector<Candidate> fits;    // the fastest; empty: none
  std::vector<Candidate> faster;  // three that would be, with more memory; or those that need least
};

// Tries checkpointing, offload, shards, tensor ranks, stages and micro-batches at the global batch
// of the options. Throws Error(kInvalidArgument) when no layout is possible at all.
Fit find_fit(const Prepared& model, const TrainOptions& options, const Place& place);

std::string fit_text(const Fit& fit, const Place& place);
std::string fit_json(const Fit& fit, const Place& place);

}  // namespace tessera::programs
