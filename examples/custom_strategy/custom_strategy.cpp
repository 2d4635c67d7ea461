// SPDX-License-Identifier: MIT
// A custom strategy outside the library: conformance and benefit.
#include <tessera/comm/local.h>
#include <tessera/optim/sgd.h>
#include <tessera/testing/strategy_conformance.h>
#include <tessera/train/trainer.h>

#include <cstdio>
#include <cstdlib>

#include "local_sgd.h"

namespace {

using namespace tessera;

testing::StrategyFactory local_sgd(int interval) {
  return [interval](const DeviceMesh& mesh) {
    return std::make_unique<LocalSgd>(ParallelConfig{}, mesh.axis(Axis::kData), interval);
  };
}

bool accepted(const char* what, int interval, int ranks, testing::Promise promise,
              const OptimizerFactory& optimizer) {
  const auto violations = testing::check_conformance(
      local_sgd(interval), {.mesh = {.data = ranks}, .promise = promise, .optimizer = optimizer});
  std::printf("%-52s %s\n%s", what, violations.empty() ? "accepted" : "refused",
              testing::to_text(violations).c_str());
  return violations.empty();
}

void train(int interval, int ranks) {
  const testing::ConformanceWork work = testing::conformance_work();
  run_local_ranks(ranks, [&](Communicator& world) {
    DeviceMesh mesh(world, {.data = ranks});
    auto strategy = local_sgd(interval)(mesh);
    strategy->attach(work.model, {.seed = 1}, make_sgd({.momentum = 0.9}));
    const int64_t before = mesh.axis(Axis::kData).bytes_sent();
    Trainer trainer(*strategy, {.max_steps = 64, .schedule = {.peak = 0.1}});
    auto batch = [&](uint64_t step) {
      return std::vector{work.batch(8, step % 4 * 64 + static_cast<uint64_t>(world.rank()))};
    };
    uint64_t step = 0;
    trainer.fit([&] { return batch(step++); }, [](const StepReport&) {});
    const double loss = strategy->evaluate(batch(0)).loss.item<double>();
    if (world.rank() != 0) return;
    std::printf("averaged every %2d steps: loss %.3f after 64 steps, %lld KiB sent by a rank\n",
                interval, loss,
                static_cast<long long>(mesh.axis(Axis::kData).bytes_sent() - before) / 1024);
  });
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  using testing::Promise;
  bool good = accepted("interval 1 with SGD, as one rank on the whole batch:", 1, ranks,
                       Promise::kTrajectory, make_sgd({}));
  good &= accepted("interval 2 with AdamW, the contract of a strategy:", 2, ranks,
                   Promise::kContract, make_adamw({}));
  for (int interval : {1, 4, 16}) train(interval, ranks);
  return good ? 0 : 1;
}
