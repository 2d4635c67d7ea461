// SPDX-License-Identifier: MIT
#include "lib/run/child_run.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>
#include <vector>

#include "lib/core/host_name.h"
#include "tessera/core/error.h"

namespace tessera::programs {
namespace {

constexpr auto kLook = std::chrono::milliseconds(50);

// A currently unused port.
int free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof(address);
  const bool bound = ::bind(fd, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
                     ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) == 0;
  ::close(fd);
  check(bound, ErrorCode::kUnavailable, "no free TCP port for the rehearsal's processes");
  return ntohs(address.sin_port);
}

std::string random_secret() {
  std::random_device random;
  std::string text;
  for (int i = 0; i < 8; ++i) text += concat(std::hex, random());
  return text;
}

std::string end_of_file(const std::string& path) {
  constexpr size_t kMost = 2000;
  std::ifstream file(path);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  return text.size() > kMost ? text.substr(text.size() - kMost) : text;
}

ErrorCode code_of(int status) {
  for (int i = 0; i <= static_cast<int>(ErrorCode::kPreempted); ++i) {
    if (exit_code(static_cast<ErrorCode>(i)) == status) return static_cast<ErrorCode>(i);
  }
  return ErrorCode::kInternal;
}

}  // namespace

ChildRun::ChildRun(const LaunchInfo& launch, ControlChannel& control, const std::string& folder,
                   const std::string& config)
    : control_(control), log_(concat(folder, "/rank-", launch.rank, ".log")) {
  const auto hosts = control.exchange(host_name());
  const bool one_host = std::ranges::all_of(hosts, [&](auto& h) { return h == hosts[0]; });
  const bool first = control.rank() == 0;
  const auto ports = control.exchange(first ? std::to_string(free_port()) : "");
  const auto secrets = control.exchange(first ? random_secret() : "");
  auto environment = environment_without_launcher();
  if (control.size() > 1) {
    environment["RANK"] = std::to_string(launch.rank);
    environment["WORLD_SIZE"] = std::to_string(launch.world_size);
    environment["LOCAL_RANK"] = std::to_string(launch.local_rank);
    environment["LOCAL_WORLD_SIZE"] = std::to_string(launch.local_size);
    environment["MASTER_ADDR"] = one_host ? "127.0.0.1" : hosts[0];
    environment["MASTER_PORT"] = ports[0];
    environment["TESSERA_JOB_SECRET"] = secrets[0];
  }
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  child_.emplace(std::vector<std::string>{self, "--config", config}, environment, log_);
}

bool ChildRun::run_until(const std::function<bool()>& done) {
  for (;;) {
    const bool mine = control_.rank() == 0 && done();
    const auto said = control_.exchange(child_->status() ? "ended" : mine ? "done" : "");
    if (std::ranges::count(said, "ended") > 0) return false;
    if (said[0] == "done") return true;
    std::this_thread::sleep_for(kLook);
  }
}

void ChildRun::kill(int rank) {
  if (rank == control_.rank()) child_->kill();
}

void ChildRun::kill_all() { child_->kill(); }

void ChildRun::wait() {
  for (;;) {
    const auto ended = control_.exchange(child_->status() ? "ended" : "");
    if (std::ranges::count(ended, "") == 0) return;
    std::this_thread::sleep_for(kLook);
  }
}

void ChildRun::fail_as_it_did(const std::string& while_doing) {
  wait();
  const int status = *child_->status();
  const auto statuses = control_.exchange(std::to_string(status));
  const auto logs = control_.exchange(end_of_file(log_));
  // A rank's own error tells more than that of a rank that lost a peer.
  const auto is_cause = [](const std::string& status) {
    return status != "0" && code_of(std::stoi(status)) != ErrorCode::kUnavailable;
  };
  auto cause = std::ranges::find_if(statuses, is_cause);
  if (cause == statuses.end())
    cause = std::ranges::find_if(statuses, [](auto& s) { return s != "0"; });
  if (cause == statuses.end()) cause = statuses.begin();
  const auto first = static_cast<size_t>(cause - statuses.begin());
  fail(code_of(std::stoi(statuses[first])), "rehearsal: rank ", first, " ended with exit code ",
       statuses[first], " while ", while_doing, "; it said last:\n", logs[first]);
}

}  // namespace tessera::programs
