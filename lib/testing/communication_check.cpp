// SPDX-License-Identifier: MIT
#include "lib/testing/checks.h"
#include "tessera/core/error.h"
#include "tessera/plan/check_communication.h"

namespace tessera::testing {
namespace {

using Rule = CommunicationProblem::Rule;

void note(const ConformanceOptions& options, const std::string& text) {
  if (options.notes != nullptr) options.notes->push_back("communication: " + text);
}

}  // namespace

// Checks that the operations of all ranks match. Notes strategies that cannot run dry, since they
// need tensor values or other ranks' answers. Checks gradient sums only if the strategy promises
// exact ones.
void check_dry_communication(const Subject& subject, Violations& violations) {
  const ConformanceOptions& options = subject.options;
  DryStep step{.model = options.work.model,
               .parallel = {},
               .optimizer = options.optimizer,
               .mesh = options.mesh};
  for (uint64_t seed = 0; seed < CheckedPlayer::kMicroBatches; ++seed) {
    step.micro_batches.push_back(options.work.batch(CheckedPlayer::kRows, seed));
  }
  step.strategy = subject.make;
  CommunicationCheck found;
  try {
    found = check_communication(step);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    return note(options, error.what());
  }
  for (const std::string& each : found.notes) note(options, each);
  for (const CommunicationProblem& each : found.problems) {
    if (each.rule == Rule::kGradient && options.promise != Promise::kExact) continue;
    violations.expect(false, to_text(each));
  }
}

}  // namespace tessera::testing
