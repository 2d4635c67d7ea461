// SPDX-License-Identifier: MIT
#pragma once
// A job of one rank per process, as Python uses it: with tessera.Job() as job: ...
#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/comm/launch/process_job.h"
#include "python/modes.h"

namespace tessera::python {

namespace nb = nanobind;

// An object that lives in a job and ends with it.
class Resident {
 public:
  virtual ~Resident() = default;
  // Reports that this rank makes no further step. Collective. See Strategy::end_of_data().
  virtual void end_of_data() = 0;
  virtual void close() = 0;  // releases the job's resources
};

// Job of Python. Calls hold the GIL and release it while they wait.
class Job {
 public:
  Job(std::string transport, bool debug_collectives);
  ~Job();

  void enter();
  // Exchanges exit statuses with the other ranks and releases everything. After a failure with
  // several ranks raises SystemExit with the cause's exit code.
  void exit(nb::handle type, nb::handle value, nb::handle traceback);

  // Throw Error(kInvalidArgument) outside `with`.
  const LaunchInfo& launch();
  Communicator& world();
  ControlChannel& control();

  std::string device() { return world().device().str(); }
  std::string transport() { return world().transport(); }
  void barrier();
  std::vector<std::string> exchange(const std::string& text);

  void add(const std::shared_ptr<Resident>& resident) { residents_.push_back(resident); }
  void remove(const Resident* resident);
  // Serialises collective calls: one thread at a time.
  class Turn {
   public:
    Turn(Job& job, const char* call);
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    Job& job_;
    const OwnModes modes_;
  };

 private:
  ProcessJob& process();
  void close();
  void wait_for_calls();                    // calls of other threads; without the GIL
  std::optional<ExitStatus> end_of_data();  // its failure, if any

  JobOptions options_;
  std::unique_ptr<ProcessJob> process_;
  std::vector<std::shared_ptr<Resident>> residents_;
  std::atomic<const char*> in_call_ = nullptr;  // set with the GIL
  bool ending_ = false;                         // exit() has begun: no further calls
};

void bind_job(nb::module_& module);

}  // namespace tessera::python
