// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>

#include <algorithm>

#include "lib/testing/checks.h"
#include "tessera/core/error.h"

namespace tessera::testing {
namespace {

// Gradients far below the total norm are rounding noise, so they are compared relative to it.
constexpr double kLeastShare = 0.05;

void compare(const std::string& what, const RankResult& actual, const RankResult& expected,
             const Subject& subject, Violations& violations) {
  const double tolerance = subject.options.tolerance;
  violations.add("loss " + what, difference(actual.loss, expected.loss, tolerance));
  violations.add("parameters " + what,
                 difference(actual.parameters, expected.parameters, tolerance));
  if (subject.options.promise != Promise::kExact) return;
  violations.add("gradient norm " + what, difference(actual.norm, expected.norm, tolerance));
  const double whole = expected.norm.empty() ? 0 : expected.norm.back();
  violations.add("gradients " + what,
                 difference(actual.gradients, expected.gradients, tolerance, kLeastShare * whole));
}

}  // namespace

// Several steps with an evaluation in between; the first rank has no targets in one of them.
void check_trajectory(const Subject& subject, Violations& violations) {
  const Script script = [](CheckedPlayer& p) {
    p.attach();
    for (uint64_t step = 0; step < 4; ++step) {
      std::vector<MicroBatch> batches = p.share(step);
      if (step == 2 && p.data_rank() == 0) {
        for (int m = 0; m < CheckedPlayer::kMicroBatches; ++m) {
          batches[static_cast<size_t>(m)] = unsupervised(batches[static_cast<size_t>(m)]);
        }
      }
      p.train(batches);
      if (step == 1) p.evaluate(5);
    }
    p.read_parameters();
    p.result().norm.clear();  // see check_exact_gradients
  };
  const RankResult expected = subject.play_reference(script);
  for (const RankResult& result : subject.play(script)) {
    compare("beside one rank", result, expected, subject, violations);
    for (size_t i = 0; i < expected.counters.size(); ++i) {
      violations.add("counters beside one rank",
                     difference(result.counters[i], expected.counters[i], 0));
    }
  }
}

// Per step: the norm, clipping by it, and every parameter's gradient.
void check_exact_gradients(const Subject& subject, Violations& violations) {
  const Script script = [](CheckedPlayer& p) {
    p.attach();
    for (uint64_t step = 0; step < 3; ++step) {
      p.forward_backward(p.share(step));
      const at::Tensor norm = p.strategy().grad_norm_squared().sqrt();
      p.result().norm.push_back(norm.item<double>());
      p.strategy().scale_gradients((0.1 / norm).clamp_max(1).to(at::kFloat));
      p.read_gradients();
      p.strategy().optimizer_step(p.learning_rate());
    }
    p.read_parameters();
  };
  const RankResult expected = subject.play_reference(script);
  for (const RankResult& result : subject.play(script)) {
    compare("beside one rank", result, expected, subject, violations);
  }
}

// Several micro-batches against one with all their rows.
void check_accumulation(const Subject& subject, Violations& violations) {
  auto script = [](bool joins) {
    return [joins](CheckedPlayer& p) {
      p.attach();
      for (uint64_t step = 0; step < 3; ++step) {
        const std::vector<MicroBatch> batches = p.share(step);
        p.train(joins ? std::vector{joined(batches)} : batches);
      }
      p.read_gradients();
      p.read_parameters();
    };
  };
  const auto one = subject.play(script(true)), several = subject.play(script(false));
  violations.take(several);
  compare("of several micro-batches beside one", several.front(), one.front(), subject, violations);
}

}  // namespace tessera::testing
