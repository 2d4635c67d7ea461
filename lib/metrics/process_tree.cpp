// SPDX-License-Identifier: MIT
// Memory of a process tree from /proc/<pid>/{stat,statm,smaps_rollup}, see proc(5).
#include <dirent.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "lib/metrics/resource_sampler.h"

namespace tessera::metrics {
namespace {

// Parent process; 0 if the process has ended. The command may contain spaces and parentheses, so
// fields start after the last ')'.
pid_t parent_of(const std::string& folder) {
  std::ifstream in(folder + "/stat");
  std::string line;
  if (!std::getline(in, line)) return 0;
  const size_t end = line.rfind(')');
  if (end == std::string::npos || end + 4 > line.size()) return 0;
  return static_cast<pid_t>(std::atol(line.c_str() + end + 4));  // ") S <ppid>"
}

std::multimap<pid_t, pid_t> children_by_parent() {
  std::multimap<pid_t, pid_t> children;
  DIR* proc = opendir("/proc");
  if (proc == nullptr) return children;
  while (const dirent* entry = readdir(proc)) {
    const pid_t pid = static_cast<pid_t>(std::atol(entry->d_name));
    if (pid <= 0) continue;
    if (const pid_t parent = parent_of(std::string("/proc/") + entry->d_name)) {
      children.emplace(parent, pid);
    }
  }
  closedir(proc);
  return children;
}

int64_t rss_of(const std::string& folder) {
  std::ifstream in(folder + "/statm");
  int64_t size = 0, resident = 0;
  in >> size >> resident;
  return in ? resident * sysconf(_SC_PAGESIZE) : 0;
}

std::optional<int64_t> pss_of(const std::string& folder) {
  std::ifstream in(folder + "/smaps_rollup");
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("Pss:")) return std::atoll(line.c_str() + 4) * 1024;
  }
  return std::nullopt;
}

}  // namespace

ProcessTreeMemory process_tree_memory(pid_t root) {
  const auto children = children_by_parent();
  ProcessTreeMemory total;
  std::vector<pid_t> pending{root};
  while (!pending.empty()) {
    const pid_t pid = pending.back();
    pending.pop_back();
    const std::string folder = "/proc/" + std::to_string(pid);
    ++total.processes;
    total.rss_bytes += rss_of(folder);
    if (auto pss = pss_of(folder)) total.pss_bytes = total.pss_bytes.value_or(0) + *pss;
    auto [first, last] = children.equal_range(pid);
    for (; first != last; ++first) pending.push_back(first->second);
  }
  return total;
}

pid_t node_tree_root(const std::string& launcher) {
  const bool launched =
      launcher == "mpirun" || launcher == "hydra" || launcher == "srun" || launcher == "torchrun";
  return launched && getppid() > 1 ? getppid() : getpid();
}

}  // namespace tessera::metrics
