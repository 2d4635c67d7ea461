// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Log: leveled messages on standard error, one line each, with the rank.
#include <string>

#include "tessera/core/error.h"

namespace tessera {

/// Severity of a message, in increasing order.
enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// Sets the rank printed before this thread's messages; -1 (the default) prints none. Child threads
/// do not inherit it.
void set_log_rank(int rank);
int log_rank();  ///< this thread's set_log_rank() value, or -1

/// Lowest printed level: TESSERA_LOG_LEVEL = debug, info (default), warning or error, read once.
LogLevel log_threshold();

/// Writes "I 12:34:56.789 [rank 3] text" as one line, with one call.
void write_log(LogLevel level, const std::string& text);

/// Writes the parts as one line if the level reaches log_threshold().
template <typename... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (level >= log_threshold()) write_log(level, concat(parts...));
}

}  // namespace tessera
