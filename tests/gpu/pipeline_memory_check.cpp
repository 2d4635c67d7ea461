// SPDX-License-Identifier: MIT
// A pipeline whose device runs out of memory after its first steps:
//   mpirun -n 2 pipeline_memory_check ROOM_MIB
// Takes all but ROOM_MIB of every device and trains on. With too little, every rank must end with
// the exit code of exhausted memory. None may wait for a message that depends on its own stage.
#include <ATen/ATen.h>

#include <cstdio>
#include <cstdlib>

#include "tessera/comm/launch.h"
#include "tessera/core/device.h"
#include "tests/gpu/allocator.h"
#include "tests/gpu/bloom_setup.h"
#include "tests/support/toy_models.h"

namespace tessera {
namespace {

constexpr int64_t kMiB = 1 << 20;

void train(Communicator& world, int64_t room) {
  const testing::Player player(world, testing::bloom_setup("ddp", {.pipeline = world.size()}, 8));
  Strategy& strategy = player.strategy();
  std::vector<MicroBatch> batches;
  for (uint64_t i = 0; i < 8; ++i) {
    batches.push_back(testing::toy_micro_batch({.vocabulary = testing::kBloomVocabulary}, 8, 512, i)
                          .to(world.device()));
  }
  auto step = [&] {
    const double loss = strategy.forward_backward(batches).loss.item<double>();
    strategy.optimizer_step(1e-4);
    if (world.rank() == 0) std::printf("loss %f\n", loss);
  };
  for (int i = 0; i < 3; ++i) step();
  synchronize_device(world.device());
  test::gpu_allocator().emptyCache();
  const int64_t free = device_memory(world.device()).first;
  const at::Tensor hog = at::empty({std::max<int64_t>(0, free - room)},
                                   at::TensorOptions(at::kByte).device(world.device()));
  for (int i = 0; i < 3; ++i) step();
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  const int64_t room = (argc > 1 ? std::atoi(argv[1]) : 64) * tessera::kMiB;
  return tessera::run_job({.transport = "nccl"},
                          [&](tessera::Communicator& world, const tessera::LaunchInfo&,
                              tessera::ControlChannel&) { tessera::train(world, room); });
}
