// SPDX-License-Identifier: MIT
#include "lib/run/child_process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>

#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

constexpr int kSignalled = 128, kNotExecuted = 127;

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (const std::string& text : texts) all.push_back(const_cast<char*>(text.c_str()));
  all.push_back(nullptr);
  return all;
}

// Closes inherited descriptors in the child: peers must not take its connections for the parent's.
void close_others() {
  constexpr unsigned kFirst = STDERR_FILENO + 1;
#ifdef SYS_close_range
  if (syscall(SYS_close_range, kFirst, ~0U, 0) == 0) return;
#endif
  for (int descriptor = kFirst; descriptor < 4096; ++descriptor) close(descriptor);
}

}  // namespace

ChildProcess::ChildProcess(const std::vector<std::string>& arguments,
                           const std::map<std::string, std::string>& environment,
                           const std::string& log, int death_signal) {
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) variables.push_back(concat(name, "=", value));
  const std::vector<char*> argv = pointers(arguments), envp = pointers(variables);
  const pid_t parent = getpid();
  pid_ = fork();
  check(pid_ >= 0, ErrorCode::kResourceExhausted, "no further process: ", std::strerror(errno));
  if (pid_ > 0) return;
  // No allocation between fork and exec: other threads may hold the allocator's lock.
  prctl(PR_SET_PDEATHSIG, death_signal);
  if (getppid() != parent) _exit(kNotExecuted);
  const int output = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (output >= 0) {
    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
  }
  close_others();
  execve(argv[0], argv.data(), envp.data());
  _exit(kNotExecuted);
}

ChildProcess::~ChildProcess() {
  if (status()) return;
  kill();
  waitpid(pid_, nullptr, 0);
}

void ChildProcess::kill() {
  if (!status()) ::kill(pid_, SIGKILL);
}

std::optional<int> ChildProcess::status() {
  int raw = 0;
  if (!status_ && waitpid(pid_, &raw, WNOHANG) == pid_) {
    status_ = WIFSIGNALED(raw) ? kSignalled + WTERMSIG(raw) : WEXITSTATUS(raw);
  }
  return status_;
}

std::map<std::string, std::string> environment_without_launcher() {
  constexpr std::array<std::string_view, 10> kPrefixes{
      "OMPI_",  "PMI",       "PRTE_",  "ORTE_",         "OPAL_",
      "HYDRA_", "MPI_LOCAL", "SLURM_", "TORCHELASTIC_", "MASTER_"};
  constexpr std::array<std::string_view, 8> kNames{
      "RANK",       "LOCAL_RANK",       "GROUP_RANK",       "ROLE_RANK",
      "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"};
  // Prefixes of mpirun's variables. Outside a job they are a user's settings; inside, the launcher
  // has added its own.
  constexpr std::array<std::string_view, 6> kSettings{"OMPI_MCA_", "OMPI_ALLOW_", "PRTE_MCA_",
                                                      "PMIX_MCA_", "OPAL_PREFIX", "HYDRA_"};
  constexpr std::array<const char*, 3> kJobs{"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK"};
  const auto begins = [](const auto& prefixes, std::string_view name) {
    return std::ranges::any_of(prefixes, [&](auto prefix) { return name.starts_with(prefix); });
  };
  const bool in_a_job =
      std::ranges::any_of(kJobs, [](const char* name) { return std::getenv(name) != nullptr; });
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const size_t equal = std::min(text.find('='), text.size());
    const std::string_view name = text.substr(0, equal);
    const bool of_launcher = (std::ranges::count(kNames, name) > 0 || begins(kPrefixes, name)) &&
                             (in_a_job || !begins(kSettings, name));
    if (!of_launcher && equal < text.size()) variables.emplace(name, text.substr(equal + 1));
  }
  return variables;
}

}  // namespace tessera::programs
