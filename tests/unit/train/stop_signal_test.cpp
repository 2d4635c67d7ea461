// SPDX-License-Identifier: MIT
#include "tessera/train/stop_signal.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE("a signal is noted, and afterwards the process is as before") {
  for (const int number : {SIGTERM, SIGUSR1, SIGINT}) {
    struct sigaction before {
    }, after{};
    sigaction(number, nullptr, &before);
    {
      const StopSignals signals;
      CHECK(signals.caught() == 0);
      std::raise(number);
      CHECK(signals.caught() == number);
    }
    sigaction(number, nullptr, &after);
    CHECK(after.sa_handler == before.sa_handler);
  }
}

TEST_CASE("the second signal ends the process, also one of another kind") {
  for (const int second : {SIGTERM, SIGUSR1, SIGINT}) {
    const pid_t child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      const StopSignals signals;
      std::raise(SIGUSR1);
      if (signals.caught() != SIGUSR1) _exit(1);
      std::raise(second);
      _exit(2);  // not reached
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFSIGNALED(status));
    CHECK(WTERMSIG(status) == second);
  }
}

TEST_CASE("signals that are not asked for do what they did") {
  struct sigaction before {
  }, meanwhile{};
  sigaction(SIGTERM, nullptr, &before);
  const StopSignals signals({SIGINT});
  sigaction(SIGTERM, nullptr, &meanwhile);
  CHECK(meanwhile.sa_handler == before.sa_handler);
  std::raise(SIGINT);
  CHECK(signals.caught() == SIGINT);
}

TEST_CASE("a signal that is ignored stays so") {
  const auto before = std::signal(SIGINT, SIG_IGN);
  {
    const StopSignals signals;
    std::raise(SIGINT);
    CHECK(signals.caught() == 0);
  }
  CHECK(std::signal(SIGINT, before) == SIG_IGN);
}

TEST_CASE("all ranks hear of a wish to stop at the same call") {
  for (const int who : {0, 2}) {
    test::run_ranks(3, [&](Communicator& world) {
      StopAgreement agreement(world);
      for (int step = 1; step <= 3; ++step) {
        test::require(!agreement.agree(false), "nobody has asked");
      }
      test::require(!agreement.agree(world.rank() == who), "the answer is read in the next call");
      test::require(agreement.agree(false), "one has asked");
    });
  }
}
