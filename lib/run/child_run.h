// SPDX-License-Identifier: MIT
#pragma once
// One run of a program as processes of its own, one for each process of a job.
#include <functional>
#include <optional>
#include <string>

#include "lib/run/child_process.h"
#include "tessera/comm/launch.h"

namespace tessera::programs {

// Every call is collective over the job's ranks.
class ChildRun {
 public:
  // This program with --config `config`, connected through MASTER_ADDR whatever launched the job;
  // what it says goes to <folder>/rank-<rank>.log.
  ChildRun(const LaunchInfo& launch, ControlChannel& control, const std::string& folder,
           const std::string& config);

  // Until done(), asked on rank 0, says so, or a rank has ended by itself: then false.
  bool run_until(const std::function<bool()>& done);
  void kill(int rank);  // SIGKILL
  void kill_all();
  void wait();  // until every rank has ended
  // Throws the Error of the rank that ended by itself, with the end of what it said.
  [[noreturn]] void fail_as_it_did(const std::string& while_doing);

 private:
  ControlChannel& control_;
  const std::string log_;
  std::optional<ChildProcess> child_;
};

}  // namespace tessera::programs
