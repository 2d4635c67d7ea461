// SPDX-License-Identifier: MIT
#include "lib/core/failure.h"

#include <c10/util/Exception.h>
#include <unistd.h>

#include <cstdlib>
#include <new>
#include <string_view>
#include <system_error>

namespace tessera {
namespace {

std::string message_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return "the host has no memory left";
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  return torch != nullptr ? torch->what_without_backtrace() : error.what();
}

// Writes to standard error without allocating.
void write_line(std::string_view begin, std::string_view end) {
  for (const std::string_view part : {begin, end, std::string_view("\n")}) {
    [[maybe_unused]] const ssize_t n = write(STDERR_FILENO, part.data(), part.size());
  }
}

[[noreturn]] void at_terminate() {
  if (std::current_exception() == nullptr) {
    write_line("E internal: ", "the process was terminated without an exception");
    std::abort();
  }
  try {
    throw;
  } catch (const std::exception& error) {
    if (is_out_of_memory(error)) {
      write_line("E out of memory: ", "the process cannot go on");
      _exit(exit_code(ErrorCode::kResourceExhausted));
    }
    write_line("E internal: an exception that nothing catches: ", error.what());
  } catch (...) {
    write_line("E internal: ", "an exception of unknown type that nothing catches");
  }
  std::abort();
}

}  // namespace

bool is_out_of_memory(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) return true;
  if (const auto* ours = dynamic_cast<const Error*>(&error)) {
    return ours->code() == ErrorCode::kResourceExhausted;
  }
  if (const auto* system = dynamic_cast<const std::system_error*>(&error)) {
    return system->code() == std::errc::resource_unavailable_try_again ||  // thrown by std::thread
           system->code() == std::errc::not_enough_memory;
  }
  if (dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr) return true;
  // The CPU allocator throws no type of its own.
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  return torch != nullptr && torch->msg().find("DefaultCPUAllocator") != std::string::npos;
}

Failure failure_of(const std::exception* error) {
  if (error == nullptr) return {ErrorCode::kInternal, "an exception of unknown type"};
  if (const auto* ours = dynamic_cast<const Error*>(error)) return {ours->code(), ours->what()};
  return {is_out_of_memory(*error) ? ErrorCode::kResourceExhausted : ErrorCode::kInternal,
          message_of(*error)};
}

Failure current_failure() {
  try {
    throw;
  } catch (const std::exception& error) {
    return failure_of(&error);
  } catch (...) {
    return failure_of(nullptr);
  }
}

void exit_when_out_of_memory() { std::set_terminate(at_terminate); }

}  // namespace tessera
