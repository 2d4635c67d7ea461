// SPDX-License-Identifier: MIT
#pragma once
// A program as a process of its own that this one watches.
#include <sys/types.h>

#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::programs {

// Ends with this process, however that ends. Has none of its open files and connections.
class ChildProcess {
 public:
  // environment: all of it. death_signal: what it is sent when this thread ends. Output and errors
  // go to the file. Throws Error(kResourceExhausted) when the system gives no process; a program
  // that cannot be executed ends with status 127.
  ChildProcess(const std::vector<std::string>& arguments,
               const std::map<std::string, std::string>& environment, const std::string& log,
               int death_signal = SIGKILL);
  ~ChildProcess();  // kills it
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void kill();                   // SIGKILL
  void leave() { status_ = 0; }  // to itself, until this thread ends
  // As a shell has it, 128 + n for signal n; nothing while it runs.
  std::optional<int> status();

 private:
  pid_t pid_ = 0;
  std::optional<int> status_;
};

// The environment of this process without the variables by which launchers say which rank it is;
// outside a job a user's settings of mpirun (OMPI_MCA_..., HYDRA_...) stay.
std::map<std::string, std::string> environment_without_launcher();

}  // namespace tessera::programs
