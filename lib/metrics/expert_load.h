// SPDX-License-Identifier: MIT
#pragma once
// Load of a model's experts, from the counters of its head.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "tessera/metrics/event.h"

namespace tessera::metrics {

// Fills the record's fields of routers and experts, after supervised_tokens, from a step's
// counters: both losses times targets, then tokens [layers * experts]. experts: of a layer; 0: not
// counted.
void add_expert_load(std::span<const double> counters, int64_t experts, StepRecord& record);

// An expert starves that gets less than 1 % of an even share of 50 steps' tokens. Where an even
// share is below 1,000 tokens it is chance.
class StarvingWatch {
 public:
  // A text, once in a run; else nothing. experts: as above.
  std::optional<std::string> add(std::span<const double> counters, int64_t experts, int64_t step);

 private:
  int64_t steps_ = 0;
  bool said_ = false;
  std::vector<double> tokens_;  // of the steps since the last look, [layers * experts]
};

}  // namespace tessera::metrics
