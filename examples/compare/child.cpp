#include "examples/compare/child.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tessera/core/error.h"

extern char** environ;

namespace tessera::programs {
namespace {

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

// Ours plus the extra entries, which win.
std::vector<std::string> merged_environment(const std::vector<std::string>& extra) {
  std::vector<std::string> merged = extra;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('=') + 1);
    bool replaced = false;
    for (const std::string& other : extra) replaced |= other.starts_with(name);
    if (!replaced) merged.push_back(text);
  }
  return merged;
}

}  // namespace

ChildResult run_child(const std::vector<std::string>& command, const std::string& log_path,
                      const std::vector<std::string>& environment) {
  const auto start = std::chrono::steady_clock::now();
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&actions, 1, log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC,
                                   0644);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  std::vector<std::string> arguments = command, entries = merged_environment(environment);
  pid_t pid = 0;
  const int error = posix_spawnp(&pid, command.front().c_str(), &actions, nullptr,
                                 pointers(arguments).data(), pointers(entries).data());
  posix_spawn_file_actions_destroy(&actions);
  check(error == 0, ErrorCode::kInternal, command.front(),
        " cannot be started: ", std::strerror(error));
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  const std::chrono::duration<double> wall = std::chrono::steady_clock::now() - start;
  return {WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status), wall.count()};
}

std::string program_folder() {
  return std::filesystem::read_symlink("/proc/self/exe").parent_path().string();
}

std::string find_in_path(const std::string& name) {
  std::istringstream folders(std::getenv("PATH") ? std::getenv("PATH") : "");
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::string path = folder + "/" + name;
    if (access(path.c_str(), X_OK) == 0) return path;
  }
  return "";
}

std::string last_error_line(const std::string& log_path) {
  std::ifstream in(log_path);
  std::string last, error;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("error")) error = line;
    if (!line.empty()) last = line;
  }
  return error.empty() ? last : error;
}

}  // namespace tessera::programs
