// SPDX-License-Identifier: MIT
// The control channel with stopped, late and hostile callers.
#include <poll.h>

#include <chrono>
#include <thread>

#include "tests/support/test.hpp"
#include "tests/unit/comm/star.hpp"

namespace tessera {
namespace {

using control::Kind;
using test::error_at;
using test::error_of;
using test::Puppet;
using test::require;
using test::Star;

TEST_CASE("a rank that falls silent is named by every other and hears of it when it goes on") {
  Star star(3, 20, 1);
  Puppet stopped(star.port);  // neither reads nor sends after its welcome
  stopped.say_hello(2, 3);
  test::run_ranks(2, [&](Communicator& world) {
    const auto client = star.join(world.rank(), 3);
    const std::string message = test::require_error(
        ErrorCode::kUnavailable, [&] { client->exchange(std::string(4 << 20, 'x')); }, "exchange");
    require(message.find("rank 2 (host lost-host) has been silent since ") == 0, message);
    require(client->conclude("secondary").at(2) == "?", "a stopped rank has no status");
  });
  stopped.hear(Kind::kAdmit);
  stopped.hear(Kind::kWelcome);
  control::Received received;
  do {
    received = control::receive_frame(stopped.socket, 20);
  } while (received.frame.kind == Kind::kPulse);
  CHECK(received.frame.kind == Kind::kFailure);
  CHECK_THAT(received.frame.payload, test::contains("rank 2 (host lost-host)"));
}

TEST_CASE("a hub that falls silent is named, also by a rank whose bytes it does not take") {
  std::promise<void> noticed;
  const auto fall_silent = [&](const control::Socket& caller) {
    control::send_frame(caller, Kind::kChallenge, "random");
    const auto hello = control::Hello::unpack(control::receive_frame(caller, 20).frame.payload);
    const control::Admission admission{control::proof_of(hello.random, "s", "hub"), "host-0", 1};
    control::send_frame(caller, Kind::kAdmit, admission.pack());
    control::send_frame(caller, Kind::kWelcome, "");
    noticed.get_future().wait_for(std::chrono::seconds(60));
  };
  const size_t bytes = GENERATE(0, 64 << 20);
  std::string concluded;
  const std::string exchanged = error_at(fall_silent, [&](control::ControlClient& client) {
    try {
      client.exchange(std::string(bytes, 'x'));
    } catch (const Error&) {
      concluded = error_of([&] { client.conclude("failed"); }).get();
      noticed.set_value();
      throw;
    }
  });
  CHECK_THAT(exchanged, test::starts_with("rank 0 (host host-0) has been silent since "));
  CHECK(concluded == exchanged);
}

TEST_CASE("a hub that sends a challenge and nothing more holds no rank") {
  CHECK_THAT(error_at([](const control::Socket& caller) {
               control::send_frame(caller, Kind::kChallenge, "random");
               pollfd wait{caller.fd(), POLLRDHUP, 0};
               ::poll(&wait, 1, 20'000);
             }),
             test::contains("says nothing") && test::contains("rank 0 is stopped"));
}

TEST_CASE("ranks that wait for a busy one are left alone, however long") {
  Star star(2, 20, 2);
  test::run_ranks(2, [&](Communicator& world) {
    const auto client = star.join(world.rank(), 2);
    if (world.rank() == 1) std::this_thread::sleep_for(std::chrono::seconds(5));
    require(client->exchange("x").size() == 2, "an exchange");
    client->conclude("");
  });
}

TEST_CASE("a rank that ends wakes those who wait for it") {
  const bool exchanges = GENERATE(true, false);
  Star star(3);
  test::run_ranks(3, [&](Communicator& world) {
    const auto client = star.join(world.rank(), 3);
    if (world.rank() == 0) {
      const std::string message = test::require_error(
          ErrorCode::kUnavailable,
          [&] { exchanges ? client->exchange("").front() : client->take("never posted"); },
          "a wait in vain");
      require(message.find(" ended while rank 0 waited for an answer") != std::string::npos,
              message);
    }
    if (world.rank() != 1) client->conclude("");  // rank 1 leaves without
  });
}

// Both connected before the job was complete.
TEST_CASE("a late hello is refused alone, and the job goes on") {
  Star star(2);
  Puppet taken(star.port), other_size(star.port);
  test::run_ranks(2, [&](Communicator& world) {
    const auto client = star.join(world.rank(), 2);
    client->exchange("");
    if (world.rank() == 0) {
      // Fails if the hub has closed the connection already.
      for (Puppet* late : {&taken, &other_size}) {
        control::send_frame(late->socket, Kind::kHello, late->hello(1, late == &taken ? 2 : 3));
        const std::string reason = late->hear(Kind::kElsewhere);
        require(reason.find("a job of 2 ranks is running there") == 0, reason);
      }
    }
    require(client->exchange("y").at(1) == "y", "the job goes on");
    client->conclude("");
  });
}

TEST_CASE("of two jobs at one port each rank meets those it was started with") {
  const LaunchGroup mine{"host", "a"}, others{"host", "b"};
  Star star(3, 20, 20, control::kMostProven, mine);
  auto early = error_of([&] { star.join(1, 3, "secret", "job 1", others); });
  auto other_size = error_of([&] { star.join(1, 2, "secret", "job 1", others); });
  CHECK_THAT(other_size.get(), test::contains("another job gathers there"));
  std::future<std::string> late;
  test::run_ranks(3, [&](Communicator& world) {
    if (world.rank() == 2) world.barrier();  // the job is incomplete until then
    if (world.rank() == 0) {
      const auto client = error_of([&] { star.join(0, 3, "secret", "job 1", mine)->conclude(""); });
      require(early.get().find("another job gathers there") != std::string::npos, "early");
      late = error_of([&] { star.join(1, 3, "secret", "job 1", others); });
      require(late.get().find("another job gathers there") != std::string::npos, "late");
      world.barrier();
      return;
    }
    if (world.rank() == 1) {
      const auto client = error_of([&] { star.join(1, 3, "secret", "job 1", mine)->conclude(""); });
      world.barrier();
      return;
    }
    star.join(2, 3, "secret", "job 1", mine)->conclude("");
  });
}

TEST_CASE("ranks that were started apart meet after a moment, on other hosts at once") {
  const LaunchGroup mine{"host", "a"};
  for (const LaunchGroup& other :
       {LaunchGroup{"host", "b"}, LaunchGroup{"host 2", "b"}, LaunchGroup{}}) {
    const auto begin = control::Clock::now();
    Star star(2, 20, 20, control::kMostProven, mine);
    auto first = error_of([&] { star.join(0, 2, "secret", "job 1", mine)->conclude(""); });
    auto second = error_of([&] { star.join(1, 2, "secret", "job 1", other)->conclude(""); });
    CHECK(first.get() + second.get() == "");
    CHECK((control::Clock::now() - begin > std::chrono::seconds(1)) == other.other_launch(mine));
  }
}

TEST_CASE("forged, torn and oversized greetings are dropped, and the ranks meet") {
  Star star(2);
  const auto begin = control::Clock::now();
  std::vector<std::unique_ptr<Puppet>> strangers;
  for (int i = 0; i < 360; ++i) {
    strangers.push_back(std::make_unique<Puppet>(star.port));
    const Puppet& each = *strangers.back();
    switch (i < 300 ? 5 : i % 5) /* more idle ones than the hub keeps at a time */ {
      case 0:
        each.say_hello(1, 2, "guess");
        break;
      case 1:
        each.say_hello(-1, 2, "guess");
        break;
      case 2:
        control::send_frame(each.socket, Kind::kHello, std::string(4000, '\xff'));
        break;
      case 3:
        control::send_frame(each.socket, Kind::kHello, std::string(40'000, 'x'));
        break;
      case 4:
        control::send_frame(each.socket, Kind::kExchange, "");
        break;
      default:
        break;  // says nothing
    }
  }
  test::run_ranks(2, [&](Communicator& world) {
    const auto client = star.join(world.rank(), 2);
    require(client->exchange("x").size() == 2, "an exchange");
    client->conclude("");
  });
  // Less than a stranger's 5 s.
  CHECK(control::Clock::now() - begin < std::chrono::milliseconds(4500));
}

}  // namespace
}  // namespace tessera
