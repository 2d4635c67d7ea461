// SPDX-License-Identifier: MIT
#pragma once
// A run of a program as child processes, one for each process of a job.
#include <functional>
#include <optional>
#include <string>

#include "lib/run/child_process.h"
#include "tessera/comm/launch.h"

namespace tessera::programs {

// All calls are collective over the job's ranks.
class ChildRun {
 public:
  // Starts this program with --config `config`, connected through MASTER_ADDR under any launcher.
  // Its output goes to <folder>/rank-<rank>.log.
  ChildRun(const LaunchInfo& launch, ControlChannel& control, const std::string& folder,
           const std::string& config);

  // Waits until done() returns true on rank 0; false if a rank ended by itself.
  bool run_until(const std::function<bool()>& done);
  void kill(int rank);  // SIGKILL
  void kill_all();
  void wait();  // waits until every rank has ended
  // Throws the Error of the rank that ended by itself, with the end of its output.
  [[noreturn]] void fail_as_it_did(const std::string& while_doing);

 private:
  ControlChannel& control_;
  const std::string log_;
  std::optional<ChildProcess> child_;
};

}  // namespace tessera::programs
