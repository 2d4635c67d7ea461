// SPDX-License-Identifier: MIT
// A program that uses MPI itself and runs jobs of tessera. Under mpirun:
//   mpi_host_check WAY
// ready: MPI is initialised with threads; several jobs may run, and MPI stays usable.
// plain: after MPI_Init no other thread may call MPI, so a job over MPI is refused; one over TCP
// runs.
// alone: a job of one process does not need MPI, however it was initialised.
// ended: MPI is finalised when the job begins. inside: while it runs. own: tessera initialises it,
// once.
#include <ATen/ATen.h>
#include <mpi.h>

#include <cstdio>
#include <string>

#include "tessera/comm/launch.h"
#include "tessera/core/error.h"
#include "tests/support/ranks.hpp"

namespace tessera::test {
namespace {

using Body = std::function<void(Communicator&)>;

int job(const std::string& transport, const Body& body = {}) {
  return run_job({.transport = transport},
                 [&](Communicator& world, const LaunchInfo&, ControlChannel&) {
                   const at::Tensor x = at::ones({10});
                   world.all_reduce(x).wait();
                   require(x[0].item<float>() == static_cast<float>(world.size()), "a sum");
                   const auto part = world.split(0, world.rank());
                   part->barrier();
                   if (body) body(world);
                 });
}

void initialise(int wanted) {
  int provided = 0;
  MPI_Init_thread(nullptr, nullptr, wanted, &provided);
  require(provided >= wanted, "MPI has threads");
}

// Checks that MPI is usable.
void require_alive() {
  int over = 0;
  MPI_Finalized(&over);
  require(over == 0, "tessera has finalised the MPI of its host program");
  int one = 1, sum = 0, size = 0;
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  MPI_Allreduce(&one, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  require(sum == size, "the host program's own sum");
}

void require_code(int code, int expected) {
  require(code == expected, "exit code ", code, " instead of ", expected);
}

// Exit codes of jobs over these transports in a program that called MPI_Init().
void require_codes(const std::vector<std::pair<const char*, int>>& codes) {
  MPI_Init(nullptr, nullptr);
  for (const auto& [transport, code] : codes) require_code(job(transport), code);
  require_alive();
  MPI_Finalize();
}

void run(const std::string& way) {
  if (way == "ready") {
    initialise(MPI_THREAD_SERIALIZED);
    for (int i = 0; i < 2; ++i) {
      require_code(job("mpi"), 0);
      require_alive();
    }
    MPI_Finalize();
  } else if (way == "plain") {
    require_codes({{"mpi", 2}, {"tcp", 0}});
  } else if (way == "alone") {
    require_codes({{"auto", 0}, {"mpi", 2}});
  } else if (way == "ended") {
    initialise(MPI_THREAD_SERIALIZED);
    MPI_Finalize();
    require_code(job("mpi"), 2);
  } else if (way == "inside") {
    initialise(MPI_THREAD_SERIALIZED);
    require_code(job("mpi",
                     [](Communicator& world) {
                       world.barrier();
                       MPI_Finalize();
                     }),
                 0);
  } else if (way == "own") {
    require_code(job("mpi"), 0);
    int over = 0;
    MPI_Finalized(&over);
    require(over != 0, "tessera finalises what it has initialised");
    require_code(job("mpi"), 2);
  } else {
    fail(ErrorCode::kInvalidArgument, "no way '", way, "'");
  }
}

}  // namespace
}  // namespace tessera::test

int main(int argc, char** argv) {
  try {
    tessera::test::run(argc > 1 ? argv[1] : "");
  } catch (const std::exception& error) {
    std::printf("FAILED: %s\n", error.what());
    return 1;
  }
  return 0;
}
