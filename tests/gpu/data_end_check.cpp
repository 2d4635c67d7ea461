// SPDX-License-Identifier: MIT
// Rank 1's data end two steps before the others':
//   mpirun -n RANKS data_end_check STRATEGY training|evaluation
// Every rank must end with the same message and exit code 4, while the others' reductions are
// enqueued.
#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "tessera/comm/launch.h"
#include "tessera/train/trainer.h"
#include "tests/gpu/bloom_setup.h"
#include "tests/support/toy_models.h"

namespace tessera {
namespace {

void run(Communicator& world, const std::string& strategy_name, bool evaluates) {
  const testing::Player player(world,
                               testing::bloom_setup(strategy_name, {.data = world.size()}, 4, 256));
  Trainer trainer(player.strategy(), {.device = world.device(), .max_steps = 100});
  const int64_t count = world.rank() == 1 ? 2 : 4;
  const BatchSource source = [&, given = int64_t{0}]() mutable -> std::vector<MicroBatch> {
    if (given == count) return {};
    const auto seed = static_cast<uint64_t>(100 * world.rank() + given++);
    return {testing::toy_micro_batch({.vocabulary = testing::kBloomVocabulary}, 2, 128, seed)};
  };
  if (evaluates) {
    trainer.evaluate(source);
  } else {
    trainer.fit(source, [](const StepReport&) {});
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (arguments.size() != 2) return 2;
  return tessera::run_job(
      {.transport = "nccl"},
      [&](tessera::Communicator& world, const tessera::LaunchInfo&, tessera::ControlChannel&) {
        tessera::run(world, arguments[0], arguments[1] == "evaluation");
      });
}
