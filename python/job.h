// SPDX-License-Identifier: MIT
#pragma once
// A job of one rank a process, as Python meets it: with tessera.Job() as job: ...
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

// What lives in a job and ends with it.
class Resident {
 public:
  virtual ~Resident() = default;
  // Collective: this rank makes no further step. See Strategy::end_of_data().
  virtual void end_of_data() = 0;
  virtual void close() = 0;  // gives back what belongs to the job
};

// Calls come from Python, with its lock; what waits gives it back meanwhile.
class Job {
 public:
  Job(std::string transport, bool debug_collectives);
  ~Job();

  void enter();
  // Tells the others how this rank ended, gives everything back, and where it does not end well
  // among several ranks raises SystemExit with the exit code of the cause.
  void exit(nb::handle type, nb::handle value, nb::handle traceback);

  // These throw Error(kInvalidArgument) outside of `with`.
  const LaunchInfo& launch();
  Communicator& world();
  ControlChannel& control();

  std::string device() { return world().device().str(); }
  std::string transport() { return world().transport(); }
  void barrier();
  std::vector<std::string> exchange(const std::string& text);

  void add(const std::shared_ptr<Resident>& resident) { residents_.push_back(resident); }
  void remove(const Resident* resident);
  // One thread at a time calls what is collective.
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
  void wait_for_calls();                // of other threads; without Python's lock
  std::optional<Ending> end_of_data();  // how it failed

  JobOptions options_;
  std::unique_ptr<ProcessJob> process_;
  std::vector<std::shared_ptr<Resident>> residents_;
  std::atomic<const char*> in_call_ = nullptr;  // set with Python's lock
  bool ending_ = false;                         // exit() has begun: no further call does
};

void bind_job(nb::module_& module);

}  // namespace tessera::python
