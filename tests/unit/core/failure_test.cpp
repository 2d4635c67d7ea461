// SPDX-License-Identifier: MIT
#include "lib/core/failure.h"

#include <c10/util/Exception.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <new>
#include <system_error>
#include <thread>

#include "tests/support/test.hpp"

using namespace tessera;

namespace {

Failure failure_from(const std::function<void()>& fn) {
  try {
    fn();
  } catch (...) {
    return current_failure();
  }
  FAIL("nothing was thrown");
  return {};
}

// Output and exit status of a process whose destructor throws `error`.
template <typename E>
std::pair<std::string, int> end_of_process(const E& error) {
  int ends[2];
  REQUIRE(pipe(ends) == 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDERR_FILENO);
    exit_when_out_of_memory();
    const auto throws = [&] { throw error; };
    [&]() noexcept { throws(); }();
  }
  close(ends[1]);
  std::string text;
  char bytes[256];
  for (ssize_t n; (n = read(ends[0], bytes, sizeof bytes)) > 0;) text.append(bytes, n);
  close(ends[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return {text, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status)};
}

}  // namespace

TEST_CASE("memory that ran out is known by whichever library says it") {
  const auto out_of_memory = [](const std::function<void()>& fn) {
    return failure_from(fn).code == ErrorCode::kResourceExhausted;
  };
  CHECK(out_of_memory([] { throw std::bad_alloc(); }));
  CHECK(out_of_memory([] { throw c10::OutOfMemoryError({__func__, __FILE__, 1}, "full"); }));
  CHECK(out_of_memory([] { fail(ErrorCode::kResourceExhausted, "full"); }));
  CHECK(out_of_memory([] {
    TORCH_CHECK(false, "DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes");
  }));
  // std::thread's exception when the host starts no further thread.
  CHECK(out_of_memory([] {
    throw std::system_error(std::make_error_code(std::errc::resource_unavailable_try_again));
  }));
  CHECK(out_of_memory(
      [] { throw std::system_error(std::make_error_code(std::errc::not_enough_memory)); }));
  CHECK_FALSE(out_of_memory(
      [] { throw std::system_error(std::make_error_code(std::errc::permission_denied)); }));
  CHECK_FALSE(out_of_memory([] { TORCH_CHECK(false, "shapes"); }));
}

TEST_CASE("a failure keeps the code and the message, without a stack") {
  const Failure ours = failure_from([] { fail(ErrorCode::kDataLoss, "x.json"); });
  CHECK(ours.code == ErrorCode::kDataLoss);
  CHECK(ours.message == "x.json");
  const Failure torch = failure_from([] { TORCH_CHECK(false, "shapes"); });
  CHECK(torch.code == ErrorCode::kInternal);
  CHECK(torch.message == "shapes");
  CHECK(failure_from([] { throw 1; }).message == "an exception of unknown type");
}

TEST_CASE("memory that runs out where nothing may throw ends the process with its exit code") {
  const auto [memory, memory_code] = end_of_process(std::bad_alloc());
  CHECK(memory_code == exit_code(ErrorCode::kResourceExhausted));
  CHECK_THAT(memory, test::contains("out of memory"));
  const auto [defect, defect_code] = end_of_process(std::logic_error("a defect"));
  CHECK(defect_code == 128 + SIGABRT);
  CHECK_THAT(defect, test::contains("a defect"));
}
