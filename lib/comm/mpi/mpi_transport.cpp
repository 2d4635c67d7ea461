// SPDX-License-Identifier: MIT
#include "lib/comm/mpi/mpi_transport.h"

#include <array>
#include <cstdlib>
#include <cstring>

#include "lib/comm/mpi/mpi_communicator.h"
#include "lib/core/number_text.h"
#include "tessera/core/error.h"

namespace tessera::mpi {

bool belongs_to(const LaunchInfo& launch) {
#ifdef OPEN_MPI
  return launch.launcher == "mpirun";
#else
  return launch.launcher == "hydra";
#endif
}

std::string unusable_because(const LaunchInfo& launch) {
  const bool pmi = std::getenv("PMIX_RANK") != nullptr || std::getenv("PMI_RANK") != nullptr;
  const bool pmix = launch.launcher == "srun" && pmi;
  if (belongs_to(launch) || launch.world_size == 1 || pmix) return Runtime::unusable_because();
  if (launch.launcher == "hydra" || launch.launcher == "mpirun") {
    return "the mpirun that started the processes belongs to another MPI than this build's";
  }
  return "the processes were not started by mpirun (or srun --mpi=pmix)";
}

std::unique_ptr<Communicator> connect(const TransportContext& context) {
  Runtime& runtime = Runtime::instance();
  auto job = std::make_shared<MpiCommunicator::Job>();
  job->signal = context.signal;
  job->abort = context.abort;
  job->log = context.log;
  job->report = context.report;
  MPI_Comm world = MPI_COMM_NULL;
  int rank = 0;
  int size = 0;
  {
    std::lock_guard lock(runtime.mutex());
    // Open MPI uses the world's error handler for collectives of any communicator.
    check_mpi(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN),
              "MPI_Comm_set_errhandler");
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, &world), "MPI_Comm_dup");
    check_mpi(MPI_Comm_set_errhandler(world, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
    check_mpi(MPI_Comm_rank(world, &rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(world, &size), "MPI_Comm_size");
  }
  check(size == context.launch.world_size, ErrorCode::kInvalidArgument, "MPI sees ", size,
        " ranks, mpirun's environment says ", context.launch.world_size,
        "; is the program linked with the MPI of this mpirun?");
  return std::make_unique<MpiCommunicator>("world", world, rank, size, std::move(job));
}

// Broadcasts over MPI even where it is unusable as a transport, since a program called MPI_Init():
// the main thread may still call MPI, and another transport serves.
Rendezvous exchange_rendezvous(const Rendezvous& of_rank_0) {
  const std::string problem = Runtime::unusable_because();
  int is_main = 0;
  if (!problem.empty() && !is_finalised()) MPI_Is_thread_main(&is_main);
  check(problem.empty() || is_main != 0, ErrorCode::kInvalidArgument, problem);
  std::unique_lock<std::mutex> lock;
  if (problem.empty()) lock = std::unique_lock(Runtime::instance().mutex());
  char text[1024] = {};
  const std::string packed = concat(of_rank_0.port, " ", of_rank_0.host, " ", of_rank_0.secret);
  check(packed.size() < sizeof text, ErrorCode::kInternal, "rendezvous text too long");
  std::memcpy(text, packed.data(), packed.size());
  check_mpi(MPI_Bcast(text, sizeof text, MPI_CHAR, 0, MPI_COMM_WORLD), "MPI_Bcast");
  Rendezvous at;
  reader_of(text) >> at.port >> at.host >> at.secret;
  return at;
}

void close(bool clean) { Runtime::close(clean); }

std::string library() {
  std::array<char, MPI_MAX_LIBRARY_VERSION_STRING> text{};
  int length = 0;
  MPI_Get_library_version(text.data(), &length);
  const std::string whole(text.data(), static_cast<size_t>(length));
  return whole.substr(0, whole.find_first_of(",\n"));
}

}  // namespace tessera::mpi
