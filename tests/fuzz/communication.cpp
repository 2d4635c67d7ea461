// SPDX-License-Identifier: MIT
#include "tests/fuzz/communication.h"

#include <algorithm>
#include <vector>

#include "lib/testing/fuzz_run.h"
#include "tessera/core/error.h"
#include "tessera/plan/check_communication.h"

namespace tessera::testing {
namespace {

constexpr size_t kMostProblems = 3;

}  // namespace

std::string FuzzedCommunication::check(const FuzzCase& c, const ModelSpec& model,
                                       std::span<const MicroBatch> micro_batches) {
  CommunicationCheck found;
  // A dry pipeline supports one shape only.
  const std::vector<MicroBatch> alike(micro_batches.size(), micro_batches.front());
  try {
    found = check_communication({.model = model,
                                 .parallel = c.parallel,
                                 .optimizer = optimizer_of(c),
                                 .mesh = c.mesh,
                                 .coordinate = {},
                                 .micro_batches = alike});
  } catch (const NotDry&) {
    ++not_checked["models that cannot run without memory: " + c.model];
    return "";
  } catch (const Error& error) {
    return concat("check of communication: ", error.what());
  }
  for (const std::string& note : found.notes) ++not_checked[note];
  if (found.problems.empty()) {
    ++checked;
    return "";
  }
  std::string text = concat("check of communication: ", found.problems.size(), " problems");
  for (size_t i = 0; i < std::min(kMostProblems, found.problems.size()); ++i) {
    text += "; " + to_text(found.problems[i]);
  }
  return text;
}

}  // namespace tessera::testing
