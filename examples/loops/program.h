#pragma once
// What the programs of this folder share:
//   NAME [STRATEGY [RANKS]]           one process; RANKS: as many threads
//   mpirun -n 4 NAME STRATEGY         four processes
// Rank 0 prints the loss of every step, which is the same under every strategy.
#include <tessera/tessera.h>
#include <torch/torch.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <vector>

namespace tessera {

using Losses = std::vector<double>;
using Train = std::function<Losses(Communicator& world, const ParallelConfig& config)>;

inline int run_program(int argc, char** argv, const Train& train) {
  const ParallelConfig config{.strategy = argc > 1 ? argv[1] : "ddp"};
  const JobOptions job{.ranks = argc > 2 ? std::atoi(argv[2]) : 0};
  return run_job(job, [&](Communicator& world, const LaunchInfo&, ControlChannel&) {
    const Losses losses = train(world, config);
    if (world.rank() != 0) return;
    for (const double loss : losses) std::printf("loss %.6f\n", loss);
  });
}

}  // namespace tessera
