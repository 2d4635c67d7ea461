// SPDX-License-Identifier: MIT
// A step that runs out of memory on every GPU, followed by smaller ones:
//   mpirun -n RANKS smaller_batch_check
// In every strategy, the smaller steps must have the losses and gradient norms of a run without the
// failed step.
#include <ATen/ATen.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "tessera/comm/launch.h"
#include "tessera/core/device.h"
#include "tessera/core/error.h"
#include "tests/gpu/allocator.h"
#include "tests/gpu/bloom_setup.h"
#include "tests/support/toy_models.h"

namespace tessera {
namespace {

constexpr int64_t kRoom = int64_t{256} << 20;

// Losses and squared gradient norms of three steps. Before the second one, a step with many rows is
// tried within kRoom.
std::vector<double> train(Communicator& world, const std::string& strategy_name, bool fails) {
  const testing::Player player(world,
                               testing::bloom_setup(strategy_name, {.data = world.size()}, 4));
  Strategy& strategy = player.strategy();
  const auto batches = [&](int64_t rows, uint64_t step) {
    const uint64_t seed = step * 64 + static_cast<uint64_t>(world.rank());
    return std::vector{
        testing::toy_micro_batch({.vocabulary = testing::kBloomVocabulary}, rows, 512, seed)
            .to(world.device())};
  };
  std::vector<double> numbers;
  for (uint64_t step = 0; step < 3; ++step) {
    if (step == 1 && fails) {
      const auto total = static_cast<double>(device_memory(world.device()).second);
      const int64_t allowed = memory_use(world.device()).reserved_bytes + kRoom;
      test::limit_gpu_memory(static_cast<double>(allowed) / total, world.device().index());
      bool failed = false;
      try {
        strategy.forward_backward(batches(128, 9));
      } catch (const c10::OutOfMemoryError&) {
        failed = true;
      }
      test::limit_gpu_memory(1, world.device().index());
      check(failed, ErrorCode::kInternal, strategy_name, ": 128 rows fit; give them less room");
    }
    numbers.push_back(strategy.forward_backward(batches(2, step)).loss.item<double>());
    numbers.push_back(strategy.grad_norm_squared().item<double>());
    strategy.optimizer_step(1e-3);
  }
  return numbers;
}

void compare(Communicator& world, const std::string& strategy_name) {
  const std::vector<double> expected = train(world, strategy_name, /*fails=*/false);
  const std::vector<double> numbers = train(world, strategy_name, /*fails=*/true);
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (world.rank() == 0) {
      std::printf("%s, step %zu, %s: %.6f, without the failed step %.6f\n", strategy_name.c_str(),
                  i / 2, i % 2 == 0 ? "loss" : "squared norm", numbers[i], expected[i]);
    }
    check(std::abs(numbers[i] - expected[i]) <= 1e-3 * std::abs(expected[i]), ErrorCode::kNumerics,
          strategy_name, ": a step that found no memory was not dropped");
  }
}

}  // namespace
}  // namespace tessera

int main() {
  return tessera::run_job(
      {.transport = "nccl"},
      [](tessera::Communicator& world, const tessera::LaunchInfo&, tessera::ControlChannel&) {
        for (const char* name : {"ddp", "zero1", "zero2", "zero3", "fsdp"}) {
          tessera::compare(world, name);
        }
      });
}
