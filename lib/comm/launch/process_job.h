// SPDX-License-Identifier: MIT
#pragma once
// One process as a rank of its job, from the connection to the end; for run_job() and for what has
// no function to give it.
#include <memory>
#include <optional>

#include "lib/comm/launch/ending.h"
#include "tessera/comm/bootstrap.h"
#include "tessera/comm/launch.h"

namespace tessera {

// Says in the log where threads take turns on this host's cores, which is slow.
void warn_about_threads(int local_size);

class ProcessJob {
 public:
  ProcessJob();  // finds the other ranks
  // Collective, once. Error and what follows are conclude()'s.
  void connect(const JobOptions& options);

  Communicator& world() { return *world_; }
  Bootstrap& bootstrap() { return *bootstrap_; }
  // Last call: tells the others how this rank ended and hears of them; whoever is to report does.
  // The exit code of the root cause. Of several calls the first one counts, and all return its
  // code.
  int conclude(const Ending& mine);
  bool concluded() const { return code_.has_value(); }

 private:
  std::unique_ptr<Bootstrap> bootstrap_;
  std::unique_ptr<Communicator> world_;  // closed first: what was aborted may take its time
  std::optional<int> code_;
};

}  // namespace tessera
