// SPDX-License-Identifier: MIT
// Conformance check of Strategy::state().
#include <memory>

#include "lib/testing/checks.h"
#include "lib/testing/whole_state.h"
#include "tessera/core/error.h"

namespace tessera::testing {
namespace {

constexpr uint64_t kStop = 2, kSteps = 4;

bool says_its_state(const Subject& subject) {
  bool says = true;
  subject.play([&](CheckedPlayer& p) {
    p.attach();
    try {
      p.strategy().state();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kInvalidArgument) throw;
      says = false;
    }
  });
  return says;
}

Named parameters_in(const WholeState& state) {
  const std::string kind = " parameter";
  Named parameters;
  for (const auto& [key, value] : state.tensors()) {
    if (key.ends_with(kind)) parameters.emplace(key.substr(0, key.size() - kind.size()), value);
  }
  return parameters;
}

}  // namespace

// All ranks' pieces form the whole model exactly once. A stopped run resumes in another strategy,
// trained on other data before, without any difference.
void check_state(const Subject& subject, Violations& violations) {
  if (!says_its_state(subject)) return;
  WholeState stopped, expected_state, resumed_state;
  const auto train = [](CheckedPlayer& p, uint64_t first, uint64_t end) {
    for (uint64_t step = first; step < end; ++step) p.train(step);
  };
  const auto finish = [&](CheckedPlayer& p, WholeState& state) {
    train(p, kStop, kSteps);
    p.evaluate(9);
    p.read_parameters();
    state.take(p.strategy().state());
  };
  const auto alone = subject.play([&](CheckedPlayer& p) {
    p.attach();
    train(p, 0, kSteps);
    p.evaluate(9);
    p.read_parameters();
  });
  const auto expected = subject.play([&](CheckedPlayer& p) {
    p.attach();
    train(p, 0, kStop);
    stopped.take(p.strategy().state());
    finish(p, expected_state);
  });
  violations.take(expected);
  violations.expect(stopped.problem().empty(), stopped.problem());
  const auto resumed = subject.play([&](CheckedPlayer& p) {
    p.attach();
    for (uint64_t step = 20; step < 23; ++step) p.train(step);
    stopped.give(p.strategy().state());
    p.strategy().state_restored();
    p.result() = {};
    finish(p, resumed_state);
  });
  violations.take(resumed);
  violations.add("parameters in the state beside the visited ones",
                 difference(parameters_in(expected_state), expected.front().parameters, 0));
  violations.add("state of the resumed run",
                 difference(resumed_state.tensors(), expected_state.tensors(), 0));
  for (size_t rank = 0; rank < resumed.size(); ++rank) {
    const std::vector<double>& whole = expected[rank].loss;
    violations.add("losses of a run whose state was read", difference(whole, alone[rank].loss, 0));
    violations.add("parameters of a run whose state was read",
                   difference(expected[rank].parameters, alone[rank].parameters, 0));
    violations.add(
        "losses of the resumed run",
        difference(resumed[rank].loss,
                   {whole.begin() + static_cast<std::ptrdiff_t>(kStop), whole.end()}, 0));
    violations.add("parameters of the resumed run",
                   difference(resumed[rank].parameters, expected[rank].parameters, 0));
  }
}

}  // namespace tessera::testing
