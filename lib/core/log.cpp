// SPDX-License-Identifier: MIT
#include "tessera/core/log.h"

#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>

#include "lib/core/printable.h"
#include "lib/core/terminal.h"

namespace tessera {
namespace {

int& this_thread_rank() {
  thread_local int rank = -1;
  return rank;
}

LogLevel level_from_environment() {
  const char* value = std::getenv("TESSERA_LOG_LEVEL");
  const std::string name = value == nullptr ? "info" : value;
  if (name == "debug") return LogLevel::kDebug;
  if (name == "warning") return LogLevel::kWarning;
  if (name == "error") return LogLevel::kError;
  return LogLevel::kInfo;
}

}  // namespace

void set_log_rank(int rank) { this_thread_rank() = rank; }

int log_rank() { return this_thread_rank(); }

LogLevel log_threshold() {
  static const LogLevel threshold = level_from_environment();
  return threshold;
}

void write_log(LogLevel level, const std::string& text) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::time_t seconds = milliseconds / 1000;
  std::tm local{};
  localtime_r(&seconds, &local);
  char head[64];
  const int length = std::snprintf(head, sizeof head, "%c %02d:%02d:%02d.%03d ",
                                   "DIWE"[static_cast<int>(level)], local.tm_hour, local.tm_min,
                                   local.tm_sec, static_cast<int>(milliseconds % 1000));
  std::string line(head, length);
  if (log_rank() >= 0) line += concat("[rank ", log_rank(), "] ");
  line += printable_with_colours(text) + "\n";
  if (const size_t width = columns_of_terminal(stderr); width > 0) {
    const char* colour = level == LogLevel::kError     ? "\033[31m"
                         : level == LogLevel::kWarning ? "\033[33m"
                                                       : "";
    line = wrapped_lines(line, static_cast<size_t>(length), width);
    if (*colour != '\0' && terminal_has_colours()) {
      line = concat(colour, line.substr(0, 1), "\033[0m", line.substr(1));
    }
    line = "\r\033[K" + line;  // clears a progress bar on this line
  }
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t n = ::write(STDERR_FILENO, line.data() + written, line.size() - written);
    if (n <= 0) return;
    written += static_cast<size_t>(n);
  }
}

}  // namespace tessera
