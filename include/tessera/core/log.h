// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Leveled messages on standard error, one line each, with the rank that speaks.
#include <string>

#include "tessera/core/error.h"

namespace tessera {

/// How important a message is, in increasing order.
enum class LogLevel { kDebug, kInfo, kWarning, kError };

/// The rank printed before this thread's messages; -1 (the start value) prints none. Child threads
/// do not inherit it.
void set_log_rank(int rank);
int log_rank();  ///< the rank that set_log_rank() set on this thread, or -1

/// Least level printed: TESSERA_LOG_LEVEL = debug, info, warning or error, read once; info without
/// it.
LogLevel log_threshold();

/// "I 12:34:56.789 [rank 3] text": the whole line is written with one call.
void write_log(LogLevel level, const std::string& text);

/// Writes the parts as one line where the level reaches log_threshold().
template <typename... Parts>
void log(LogLevel level, const Parts&... parts) {
  if (level >= log_threshold()) write_log(level, concat(parts...));
}

}  // namespace tessera
