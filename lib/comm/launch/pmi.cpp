// SPDX-License-Identifier: MIT
#include "lib/comm/launch/pmi.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>

#include "tessera/core/error.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

constexpr const char* kKey = "tessera-rank-0";

// Client of the PMI process manager: request and answer are lines "cmd=NAME key=value ...".
class Manager {
 public:
  explicit Manager(double timeout_s)
      : deadline_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                     std::chrono::duration<double>(timeout_s))) {
    const char* text = std::getenv("PMI_FD");
    check(text != nullptr, ErrorCode::kInvalidArgument,
          "launch: PMI_RANK is set, but not PMI_FD, through which MPICH's process manager is "
          "reached; set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, or use Open MPI's mpirun");
    const auto parsed = std::from_chars(text, text + std::strlen(text), fd_);
    check(parsed.ec == std::errc(), ErrorCode::kInvalidArgument, "launch: PMI_FD=", text,
          " is no file descriptor");
  }

  // Sends a request. Returns the answer, whose command must be `expected`; throws when it reports
  // an error.
  std::string ask(const std::string& request, const std::string& expected) {
    const std::string line = request + "\n";
    check(::send(fd_, line.data(), line.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(line.size()),
          ErrorCode::kUnavailable, "launch: writing to the process manager (PMI_FD=", fd_,
          ") failed: ", std::strerror(errno));
    const std::string answer = read_line();
    const std::string rc = value(answer, "rc");
    check(value(answer, "cmd") == expected && (rc.empty() || rc == "0"), ErrorCode::kUnavailable,
          "launch: the process manager answered '", answer, "' to '", request, "'");
    return answer;
  }

  static std::string value(const std::string& line, const std::string& key) {
    const std::string spaced = " " + line;
    const size_t at = spaced.find(" " + key + "=");
    if (at == std::string::npos) return "";
    const size_t begin = at + key.size() + 2;
    return spaced.substr(begin, spaced.find(' ', begin) - begin);
  }

 private:
  std::string read_line() {
    std::string line;
    for (char byte = 0; byte != '\n';) {
      const auto left =
          std::chrono::duration_cast<std::chrono::milliseconds>(deadline_ - Clock::now());
      pollfd wait{fd_, POLLIN, 0};
      const int ready = ::poll(&wait, 1, static_cast<int>(std::max<int64_t>(0, left.count())));
      if (ready < 0 && errno == EINTR) continue;
      check(ready > 0 && ::read(fd_, &byte, 1) == 1, ErrorCode::kUnavailable,
            "launch: the process manager (PMI_FD=", fd_, ") ",
            ready > 0 ? "has closed the connection" : "did not answer in time: is a rank missing?");
      if (byte != '\n') line += byte;
    }
    return line;
  }

  const Clock::time_point deadline_;
  int fd_ = -1;
};

}  // namespace

std::string broadcast_over_pmi(int rank, const std::string& text, double timeout_s) {
  Manager manager(timeout_s);
  manager.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init");
  const std::string space =
      Manager::value(manager.ask("cmd=get_my_kvsname", "my_kvsname"), "kvsname");
  if (rank == 0) {
    manager.ask(concat("cmd=put kvsname=", space, " key=", kKey, " value=", text), "put_result");
  }
  manager.ask("cmd=barrier_in", "barrier_out");
  const std::string got = Manager::value(
      manager.ask(concat("cmd=get kvsname=", space, " key=", kKey), "get_result"), "value");
  manager.ask("cmd=finalize", "finalize_ack");
  return got;
}

}  // namespace tessera
