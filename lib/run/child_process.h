// SPDX-License-Identifier: MIT
#pragma once
// A program as a child process that this one watches.
#include <sys/types.h>

#include <csignal>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace tessera::programs {

// Ends with this process, however that ends. Inherits none of its open files and connections.
class ChildProcess {
 public:
  // environment: complete. death_signal: sent to the child when this thread ends. Its output and
  // errors go to the file `log`. Throws Error(kResourceExhausted) when no process can be created; a
  // program that cannot be executed exits with 127.
  ChildProcess(const std::vector<std::string>& arguments,
               const std::map<std::string, std::string>& environment, const std::string& log,
               int death_signal = SIGKILL);
  ~ChildProcess();  // kills the child
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  void kill();                   // SIGKILL
  void leave() { status_ = 0; }  // lets it run on until this thread ends
  // Exit status as in a shell, 128 + n for signal n; empty while it runs.
  std::optional<int> status();

 private:
  pid_t pid_ = 0;
  std::optional<int> status_;
};

// This process's environment without a launcher's variables of its rank. Outside a job, a user's
// mpirun settings stay (OMPI_MCA_..., HYDRA_...).
std::map<std::string, std::string> environment_without_launcher();

}  // namespace tessera::programs
