// SPDX-License-Identifier: MIT
#include "lib/comm/launch/throw_observer.h"

#include <future>
#include <mutex>
#include <stdexcept>

#include "tests/support/test.hpp"
#include "tests/support/watchdog.hpp"

namespace tessera {
namespace {

constexpr auto kPatience = std::chrono::seconds(20);

// The observed message, and whether it was observed before the thrower's objects were destroyed.
struct Heard {
  std::string what;
  bool before_unwinding = false;
  int times = 0;
};

Heard heard_of(const std::function<void()>& thrower) {
  Heard heard;
  std::promise<void> told;
  auto is_told = told.get_future();
  struct Object {
    ~Object() { before_unwinding = told.wait_for(kPatience) == std::future_status::ready; }
    std::future<void>& told;
    bool& before_unwinding;
  };
  const auto fn = [&] {
    const Object object{is_told, heard.before_unwinding};
    thrower();
    told.set_value();  // nothing to wait for
  };
  try {
    run_with_throw_observer(fn, [&](const std::exception* error) {
      const std::string what = error == nullptr ? "unknown" : error->what();
      return [&, what] {
        heard.what = what;
        ++heard.times;
        told.set_value();
      };
    });
  } catch (...) {
  }
  return heard;
}

TEST_CASE("an exception is told of before it unwinds") {
  const test::Watchdog watchdog("early notice", kPatience);
  struct Many : std::string, std::runtime_error {  // std::exception is not the first base
    Many() : std::runtime_error("many") {}
  };
  const auto check = [](const std::function<void()>& thrower, const std::string& what) {
    const Heard heard = heard_of(thrower);
    CHECK(heard.what == what);
    CHECK(heard.times == 1);
    CHECK(heard.before_unwinding);
  };
  check([] { throw std::runtime_error("plain"); }, "plain");
  check([] { throw Many(); }, "many");
  check([] { throw 7; }, "unknown");
  check([] { std::rethrow_exception(std::make_exception_ptr(std::logic_error("again"))); },
        "again");
  check(
      [] {
        try {
          throw std::runtime_error("first");
        } catch (const std::exception&) {
          throw std::runtime_error("second");
        }
      },
      "second");
}

TEST_CASE("what is caught inside, or does not come, is not told of") {
  const test::Watchdog watchdog("early notice", kPatience);
  const Heard heard = heard_of([] {
    try {
      throw std::runtime_error("caught");
    } catch (const std::runtime_error&) {
    }
  });
  CHECK(heard.times == 0);
  CHECK(heard_of([] {}).times == 0);
}

TEST_CASE("a lock that the thrower holds stops the notice until it unwinds, and no longer") {
  const test::Watchdog watchdog("early notice", kPatience);
  std::mutex mutex;
  bool told = false;
  const auto thrower = [&] {
    const std::lock_guard lock(mutex);
    throw std::runtime_error("locked");
  };
  CHECK_THROWS_WITH(run_with_throw_observer(thrower,
                                            [&](const std::exception*) {
                                              return [&] {
                                                const std::lock_guard lock(mutex);
                                                told = true;
                                              };
                                            }),
                    "locked");
  CHECK(told);
}

TEST_CASE("the innermost of two that run in each other is told first") {
  const test::Watchdog watchdog("early notice", kPatience);
  std::string order;
  const auto note = [&](const char* who) {
    return [&order, who](const std::exception*) { return [&order, who] { order += who; }; };
  };
  const auto inner = [&] {
    run_with_throw_observer([] { throw std::runtime_error("x"); }, note("inner "));
  };
  const auto caught = [&] {
    try {
      inner();
    } catch (const std::exception&) {
    }
    throw std::runtime_error("y");
  };
  CHECK_THROWS(run_with_throw_observer(caught, note("outer ")));
  CHECK(order == "inner outer ");
}

}  // namespace
}  // namespace tessera
