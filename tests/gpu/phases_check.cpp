// SPDX-License-Identifier: MIT
// Times of a step's phases on GPUs, as reported to a training loop:
//   mpirun -n RANKS phases_check STRATEGY
// Trains evenly on every rank, then with more work on the last one. The phases must add up to the
// step, and the ranks must know who works longest.
#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <vector>

#include "lib/run/rank_times.h"
#include "tessera/comm/launch.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tessera/train/trainer.h"
#include "tests/gpu/bloom_setup.h"
#include "tests/support/ranks.hpp"
#include "tests/support/toy_models.h"

namespace tessera {
namespace {

using test::require;

constexpr int64_t kSteps = 12, kWarmUp = 4;

struct Seconds {
  double step = 0, clock = 0, phases = 0, communication = 0;
  std::vector<double> work;  // by rank
};

Seconds train(Communicator& world, const std::string& strategy_name, double extra_work) {
  const testing::Player player(world,
                               testing::bloom_setup(strategy_name, {.data = world.size()}, 8));
  Strategy& strategy = player.strategy();
  const at::Tensor a =
      at::randn({4096, 4096}, at::TensorOptions(at::kFloat).device(world.device()));
  at::Tensor product = at::empty_like(a);
  TrainerOptions options{.device = world.device(), .max_steps = kSteps};
  options.before_update = [&] {
    for (int i = 0; i < extra_work; ++i) at::mm_out(product, a, a);
  };
  MicroBatch batch =
      testing::toy_micro_batch({.vocabulary = testing::kBloomVocabulary}, 16, 512, 1);
  batch.input_ids = batch.input_ids.pin_memory();
  batch.labels = batch.labels.pin_memory();
  Trainer trainer(strategy, options);
  programs::RankTimes times(world);
  Seconds sum;
  sum.work.resize(static_cast<size_t>(world.size()));
  const auto note_work = [&](int64_t step) {
    const std::vector<double> work = times.read();
    for (size_t rank = 0; rank < work.size() && step > kWarmUp; ++rank)
      sum.work[rank] += work[rank];
  };
  trainer.fit([&] { return std::vector{batch}; },
              [&](const StepReport& report) {
                check(report.phases.has_value(), ErrorCode::kInternal, "step ", report.step,
                      " has no phases");
                note_work(report.step - 1);
                const PhaseTimes& phases = *report.phases;
                times.tell(phases.step_s - phases.communication_s);
                if (report.step <= kWarmUp) return;
                sum.step += report.step_time_s;
                sum.clock += phases.step_s;
                sum.phases += phases.forward_s + phases.backward_s + phases.optimizer_s +
                              phases.communication_s;
                sum.communication += phases.communication_s;
              });
  note_work(kSteps);
  const double steps = kSteps - kWarmUp;
  std::printf(
      "%s, rank %d, extra work %g: a step %.3f ms, by the clock %.3f ms, in phases %.3f ms, of "
      "these "
      "waiting %.3f ms\n",
      strategy_name.c_str(), world.rank(), extra_work, sum.step / steps * 1e3,
      sum.clock / steps * 1e3, sum.phases / steps * 1e3, sum.communication / steps * 1e3);
  return sum;
}

void run(Communicator& world, const std::string& strategy) {
  const Seconds even = train(world, strategy, 0);
  require(std::abs(even.clock / even.step - 1) < 0.05, "the clock's step is not the step");
  require(even.phases <= even.clock && even.phases > 0.95 * even.step, "phases leave time out");
  if (world.size() == 1) return;
  const int last = world.size() - 1;
  const Seconds uneven = train(world, strategy, world.rank() == last ? 20 : 0);
  require(std::abs(uneven.clock / uneven.step - 1) < 0.05, "the clock's step is not the step");
  require(std::ranges::max_element(uneven.work) - uneven.work.begin() == last,
          "the slowest rank is not named");
  require(uneven.work.back() > 1.5 * uneven.work.front(), "ranks work equally long");
  if (world.rank() == 0) {
    const double waited = uneven.communication - even.communication;
    const double longer = uneven.step - even.step;
    require(std::abs(waited - longer) < 0.1 * uneven.step, "what was waited for is not known");
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const std::string strategy = argc > 1 ? argv[1] : "ddp";
  return tessera::run_job({.transport = "nccl"},
                          [&](tessera::Communicator& world, const tessera::LaunchInfo&,
                              tessera::ControlChannel&) { tessera::run(world, strategy); });
}
