// SPDX-License-Identifier: MIT
// Tensors larger than one MPI call allows. Under mpirun; throws at the first deviation.
#include <ATen/ATen.h>

#include <cstdio>

#include "lib/comm/mpi/mpi_communicator.h"
#include "tessera/comm/launch.h"
#include "tests/support/ranks.hpp"

namespace tessera::test {
namespace {

// A communicator over all ranks with at most seven elements per MPI call.
std::unique_ptr<Communicator> in_small_pieces(const Communicator& world) {
  mpi::Runtime& runtime = mpi::Runtime::instance();
  auto job = std::make_shared<mpi::MpiCommunicator::Job>();
  job->signal = std::make_shared<AbortSignal>();
  job->abort = [signal = job->signal](const std::string& reason) { signal->raise(reason); };
  job->log = std::make_shared<OperationLog>(world.rank());
  job->report = [signal = job->signal](const LoggedCall& call, const std::string& cause) {
    signal->raise(concat(call.text().describe(), ": ", cause));
  };
  job->most_elements = 7;
  std::lock_guard lock(runtime.mutex());
  MPI_Comm comm = MPI_COMM_NULL;
  mpi::check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &comm), "MPI_Comm_dup");
  mpi::check_mpi(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return std::make_unique<mpi::MpiCommunicator>("pieces", comm, world.rank(), world.size(),
                                                std::move(job));
}

void large_tensors_take_several_calls(Communicator& world) {
  const auto comm = in_small_pieces(world);
  const int ranks = comm->size();
  const int rank = comm->rank();
  for (const int64_t count : {7, 8, 14, 50}) {
    const at::Tensor base = at::arange(count, at::kFloat);
    const at::Tensor x = base + rank;
    comm->all_reduce(x).wait();
    require_bit_equal(x, base * ranks + ranks * (ranks - 1) / 2, concat("all_reduce of ", count));
    const at::Tensor all = at::empty({ranks, count});
    comm->all_gather(all, base + 100 * rank).wait();
    for (int r = 0; r < ranks; ++r) {
      require_bit_equal(all[r], base + 100 * r, concat("all_gather of ", count));
    }
    const at::Tensor part = at::empty({count});
    comm->reduce_scatter(part, all).wait();
    require_bit_equal(part, (base + 100 * rank) * ranks, concat("reduce_scatter of ", count));
    const at::Tensor own = all[rank];
    comm->reduce_scatter(own, all).wait();
    require_bit_equal(own, part, concat("reduce_scatter in place of ", count));
    const at::Tensor y = base + rank;
    comm->broadcast(y, ranks - 1).wait();
    require_bit_equal(y, base + ranks - 1, concat("broadcast of ", count));
    const at::Tensor received = at::empty({count});
    Work sent = comm->send(base + rank, (rank + 1) % ranks);
    comm->recv(received, (rank + ranks - 1) % ranks).wait();
    sent.wait();
    require_bit_equal(received, base + (rank + ranks - 1) % ranks, concat("message of ", count));
  }
}

// As int, 3 GiB would be negative or invalid.
void large_messages_are_counted() {
  MPI_Status status{};
  for (const MPI_Count bytes : {MPI_Count{5}, MPI_Count{3} << 30, MPI_Count{9} << 30}) {
    mpi::check_mpi(MPI_Status_set_elements_x(&status, MPI_BYTE, bytes), "MPI_Status_set_elements");
    require(mpi::received_bytes(status) == bytes, mpi::received_bytes(status), " bytes, not ",
            bytes);
  }
}

}  // namespace
}  // namespace tessera::test

int main() {
  using namespace tessera;
  return run_job({.transport = "mpi"}, [](Communicator& world, const LaunchInfo&, ControlChannel&) {
    test::large_tensors_take_several_calls(world);
    test::large_messages_are_counted();
    world.barrier();
    if (world.rank() == 0) std::printf("large tensors: as they should be\n");
  });
}
