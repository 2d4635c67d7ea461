// SPDX-License-Identifier: MIT
// generate() with one process per rank, over MPI, TCP or NCCL:
//   mpirun -n 2 generation_ranks [transport]
// Prints one line per layout; exits 4 or more at the first difference from transformers.
#include <cstdio>

#include "tessera/comm/launch.h"
#include "tests/parity/huggingface/generation_work.h"

namespace tessera::testing {
namespace {

std::vector<WritingLayout> layouts_of(int ranks) {
  std::vector<WritingLayout> layouts;
  for (const std::string strategy : {"ddp", "zero3", "fsdp"}) {
    layouts.push_back(writing_layout(strategy, 1, ranks, 1));
  }
  layouts.push_back(writing_layout("zero3", 1, ranks, 1));
  layouts.back().parallel.offload.what = Offload::kOptimizerAndParameters;
  if (ranks % 2 != 0) return layouts;
  layouts.push_back(writing_layout("ddp", 2, ranks / 2, 1));
  layouts.push_back(layouts.back());
  layouts.back().parallel.pipeline.shared_vocabulary = true;
  layouts.push_back(writing_layout("ddp", 1, ranks / 2, 2));
  return layouts;
}

void run(Communicator& world) {
  for (const WritingLayout& layout : layouts_of(world.size())) {
    for (const std::string name : kWritingModels) {
      const WritingTrial trial(name);
      with_strategy(world, layout, trial.fixture, [&](Strategy& strategy, const DeviceMesh& mesh) {
        for (const bool use_cache : {true, false}) {
          GenerationOptions options = trial.options;
          options.use_cache = use_cache;
          require_expected(generate(strategy, mesh, trial.prompts, options), trial);
        }
      });
    }
    if (world.rank() == 0) std::printf("ok   %s\n", layout.name().c_str());
  }
}

}  // namespace
}  // namespace tessera::testing

int main(int argc, char** argv) {
  using namespace tessera;
  return run_job(
      {.transport = argc > 1 ? argv[1] : "auto"},
      [](Communicator& world, const LaunchInfo&, ControlChannel&) { testing::run(world); });
}
