// SPDX-License-Identifier: MIT
#include "lib/plan/followed_run.h"

#include <ATen/ATen.h>

#include <utility>

#include "lib/plan/dry_run.h"
#include "lib/plan/value_follower.h"
#include "tessera/core/error.h"

namespace tessera {
namespace {

constexpr int kSteps = 2;  // the first step makes state that the second one uses

// Reads the gradients that the update will use. Throws Error(kInvalidArgument) if the strategy does
// not expose them.
void read_gradients(Strategy& strategy, int step, ValueFollower& follower, RankRun& run) {
  std::map<std::string, int64_t>& owned = follower.owned();
  owned.clear();
  strategy.for_each_gradient([&](const GradientPiece& piece) {
    owned[piece.name] += piece.value.numel();
    FollowedGradient& gradient = run.gradients.emplace_back();
    gradient = {.name = piece.name, .elements = piece.value.numel(), .step = step};
    const auto [storage, begin, end] = range_of(piece.value);
    int64_t next = begin;
    const auto add = [&](const KnownGradient& part) {
      for (const KnownGradient& known : gradient.parts) {
        if (known.same(part)) return;
      }
      gradient.parts.push_back(part);
    };
    for (const auto& each : follower.rules().gradient(piece.value)) {
      if (each.begin > next) add({});
      add(each.what);
      next = each.end;
    }
    if (next < end) add({});
  });
  follower.set_owners_known();
}

void run_steps(const DryStep& step, Strategy& strategy, ValueFollower& follower, RankRun& run) {
  const std::vector<MicroBatch> batches = without_memory(step.micro_batches);
  const auto begin_phase = [&] {
    run.steps.push_back(static_cast<int64_t>(follower.ledger().operations.size()));
  };
  for (int s = 1; s <= kSteps; ++s) {
    begin_phase();
    follower.watch_reads(true);
    strategy.forward_backward(batches);
    follower.watch_reads(false);
    strategy.grad_norm_squared();
    if (run.note.empty()) {
      try {
        read_gradients(strategy, s, follower, run);
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kInvalidArgument) throw;
        run.note = error.what();
      }
    }
    follower.rules().begin_update();
    strategy.optimizer_step(/*learning_rate=*/1e-3);
  }
}

}  // namespace

RankRun follow_run(const DryStep& given, const MeshCoordinate& coordinate,
                   const CommunicationCheckOptions& options) {
  RankRun run;
  run.steps = {0};
  // Operations before a rejected one are kept.
  const auto ledger = std::make_shared<CommunicationLedger>();
  const auto follow = [&] {
    ValueFollower follower(*ledger);
    DryStep step = given;
    step.coordinate = coordinate;
    step.model = follower.follow(given.model);
    const auto wrap = [&](std::unique_ptr<Communicator> world) {
      world = follower.follow(record_operations(std::move(world), ledger));
      return options.wrap ? options.wrap(std::move(world)) : std::move(world);
    };
    const auto keep = [&] {
      run.problems = follower.take_problems();
      run.ledger = *ledger;
      run.partial = follower.partial();
      run.cut = follower.cut();
    };
    try {
      DryRun dry(step, wrap);
      dry.guarded([&] { run_steps(step, dry.strategy(), follower, run); });
    } catch (...) {
      keep();
      throw;
    }
    keep();
  };
  if (!options.wrap) {
    follow();
    return run;
  }
  try {
    follow();
  } catch (const Error& error) {
    CommunicationProblem problem{
        .rule = CommunicationProblem::Rule::kRefused, .operation = -1, .text = error.what()};
    if (!run.ledger.operations.empty()) {
      problem.tensor = run.ledger.operations.back().name;
      problem.phase = run.ledger.operations.back().phase;
    }
    run.problems.push_back(std::move(problem));
  }
  return run;
}

}  // namespace tessera
