// SPDX-License-Identifier: MIT
#pragma once
// A process as one rank of a job, from connecting to the exit status. For run_job() and for callers
// without a function to pass.
#include <memory>
#include <optional>

#include "lib/comm/launch/exit_status.h"
#include "tessera/comm/bootstrap.h"
#include "tessera/comm/launch.h"

namespace tessera {

// Warns when threads oversubscribe this host's cores.
void warn_about_threads(int local_size);

class ProcessJob {
 public:
  ProcessJob();  // finds the other ranks
  // Collective, once. Later errors are conclude()'s.
  void connect(const JobOptions& options);

  Communicator& world() { return *world_; }
  Bootstrap& bootstrap() { return *bootstrap_; }
  // Last call: exchanges exit statuses with the other ranks; the reporting rank logs them. Returns
  // the exit code of the root cause. Later calls return the first call's code.
  int conclude(const ExitStatus& mine);
  bool concluded() const { return code_.has_value(); }

 private:
  std::unique_ptr<Bootstrap> bootstrap_;
  std::unique_ptr<Communicator> world_;  // closed first: aborted operations may take time
  std::optional<int> code_;
};

}  // namespace tessera
