// SPDX-License-Identifier: MIT
#include <algorithm>
#include <exception>

#include "lib/comm/launch/exit_status.h"
#include "lib/comm/launch/process_job.h"
#include "lib/comm/launch/throw_observer.h"
#include "tessera/comm/launch.h"
#include "tessera/comm/local.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"

namespace tessera {
namespace {

int run_threads(int ranks, const JobFunction& fn) {
  std::vector<ExitStatus> endings(ranks);
  warn_about_threads(ranks);
  try {
    run_local_ranks(ranks, [&](Communicator& world) {
      const int rank = world.rank();
      try {
        const auto talk = world.split(0, rank);
        CommunicatorChannel control(*talk);
        run_with_throw_observer(
            [&] {
              fn(world, LaunchInfo{"threads", rank, ranks, rank, ranks}, control);
            },
            [&](const std::exception* error) {
              return [&world, reason = exit_status_of(error).reason(rank)] { world.abort(reason); };
            });
      } catch (...) {
        endings[rank] = current_exception_status();
        throw;
      }
    });
  } catch (...) {
    const ExitStatus whole = current_exception_status();
    const bool of_a_rank = std::ranges::any_of(
        endings, [&](const ExitStatus& ending) { return ending.message == whole.message; });
    if (!of_a_rank) throw;  // some ranks could not be started
    log_exit_statuses(endings);
    return root_cause(endings);
  }
  return 0;
}

int run_process(const JobOptions& options, const JobFunction& fn) {
  ProcessJob job;
  try {
    run_with_throw_observer(
        [&] {
          job.connect(options);
          fn(job.world(), job.bootstrap().launch(), job.bootstrap());
        },
        // Reports before unwinding, which may take minutes while a checkpoint is written.
        [&](const std::exception* error) {
          return [&job, mine = exit_status_of(error)] { job.conclude(mine); };
        });
    return job.conclude({});
  } catch (...) {
    return job.conclude(current_exception_status());
  }
}

}  // namespace

int run_job(const JobOptions& options, const JobFunction& fn) {
  try {
    if (options.ranks == 0) return run_process(options, fn);
    const LaunchInfo launch = detect_launch();
    check(options.ranks > 0, ErrorCode::kInvalidArgument, "--ranks ", options.ranks,
          " is not a number of ranks");
    check(launch.world_size == 1, ErrorCode::kInvalidArgument, "--ranks ", options.ranks,
          " makes in-process ranks, but ", launch.launcher, " already started ", launch.world_size,
          " processes; use one of the two");
    check(options.transport == "auto" || options.transport == "local", ErrorCode::kInvalidArgument,
          "--ranks makes in-process ranks, which the transport '", options.transport,
          "' cannot connect; leave it out or start processes with mpirun");
    return run_threads(options.ranks, fn);
  } catch (...) {
    const ExitStatus ending = current_exception_status();
    log(LogLevel::kError, ending.kind, ": ", ending.message);
    write_torchelastic_error(ending);
    return ending.code;
  }
}

int run_job(const JobOptions& options, const std::function<void(Communicator& world)>& fn) {
  return run_job(options,
                 [&](Communicator& world, const LaunchInfo&, ControlChannel&) { fn(world); });
}

}  // namespace tessera
