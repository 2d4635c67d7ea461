// SPDX-License-Identifier: MIT
#pragma once
/// @file
/// Error: the library's only exception type. Every message says what happened, where, and what to
/// do.
#if __cplusplus < 202002L
#error "tessera needs C++20: compile with -std=c++20 or later"
#endif
#include <locale>
#include <sstream>
#include <stdexcept>
#include <string>

namespace tessera {

/// Error codes; exit_code() maps them to the programs' exit codes.
enum class ErrorCode {
  kInvalidArgument,    ///< usage or configuration: exit 2
  kResourceExhausted,  ///< out of memory: exit 3
  kDataLoss,           ///< bad data, model, checkpoint or disk: exit 4
  kUnavailable,        ///< a peer failed or a collective timed out: exit 5
  kNumerics,           ///< training stopped on non-finite numbers: exit 6
  kInternal,           ///< a defect of the library: exit 70
  kPreempted,          ///< stopped by a signal after a complete checkpoint: exit 75
};

/// The code's name in messages: "invalid argument", "out of memory", ...
const char* error_code_name(ErrorCode code);
int exit_code(ErrorCode code);  ///< the exit code of a program that ends with this error

/// The exception that all functions of the library throw.
class Error : public std::runtime_error {
 public:
  /// The message names what happened, where, and what to do.
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }  ///< the code, which determines the exit code

 private:
  ErrorCode code_;
};

/// Joins its arguments with operator<< in the classic locale.
template <typename... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  out.imbue(std::locale::classic());
  (out << ... << parts);
  return out.str();
}

/// Throws Error(code, message parts...).
template <typename... Parts>
[[noreturn]] void fail(ErrorCode code, const Parts&... parts) {
  throw Error(code, concat(parts...));
}

/// Throws Error(code, message parts...) unless the condition holds.
template <typename... Parts>
void check(bool condition, ErrorCode code, const Parts&... parts) {
  if (!condition) fail(code, parts...);
}

}  // namespace tessera
