// SPDX-License-Identifier: MIT
#pragma once
// Search for the best layout of a model on given devices.
#include <string>
#include <vector>

#include "lib/tools/plan/plan.h"

namespace tessera::programs {

struct Candidate {
  RunPlan run;
  double needed = 0;  // bytes per rank
  std::string flags;  // flags that distinguish it from the others
};

struct Fit {
  int64_t tried = 0;
  std::vector<Candidate> fits;  // fastest first; empty: none fits
  // Three faster ones that need more memory; if none fits, those that need least.
  std::vector<Candidate> faster;
  // Of the layout that needs least with one row a micro-batch: its longest row, and its flags.
  int64_t longest_row = 0;
  std::string longest_row_flags = {};
  double longest_row_host_bytes = 0;  // of a rank, on its host
};

// Tries checkpointing, offload, sharding, tensor ranks, stages and micro-batches with the options'
// global batch. Throws Error(kInvalidArgument) when no layout is possible.
Fit find_fit(const Prepared& model, const TrainOptions& options, const PlannedHosts& hosts);

std::string fit_text(const Fit& fit, const PlannedHosts& hosts);
std::string fit_json(const Fit& fit, const PlannedHosts& hosts);

}  // namespace tessera::programs
