// SPDX-License-Identifier: MIT
#include "tessera/comm/bootstrap.h"

#include <unistd.h>

#include "tests/support/test.hpp"
#include "tests/unit/comm/star.hpp"

namespace tessera {
namespace {

using test::error_at;
using test::error_of;
using test::require;
using test::Star;

TEST_CASE("differing texts are reported with ranks and lines, the same on all ranks") {
  test::run_ranks(4, [](Communicator& world) {
    CommunicatorChannel channel(world);
    require_same_on_all_ranks(channel, "the configuration", "a=1\nb=2\n");
    const std::string mine = world.rank() % 2 == 1 ? "a=1\nb=3\n" : "a=1\nb=2\n";
    const std::string message = test::require_error(
        ErrorCode::kInvalidArgument,
        [&] { require_same_on_all_ranks(channel, "the configuration", mine); }, "a difference");
    require(message.find("the configuration is not the same on all ranks: on rank 1, 3 line 2 is "
                         "'b=3' instead of 'b=2'") == 0,
            message);
  });
}

TEST_CASE("ranks print as ranges") {
  REQUIRE(rank_list({0}) == "0");
  REQUIRE(rank_list({1, 2, 3, 7}) == "1-3, 7");
}

TEST_CASE("the control channel exchanges, posts and concludes") {
  Star star(4);
  test::run_ranks(4, [&](Communicator& world) {
    const int rank = world.rank();
    const auto client = star.join(rank, 4);
    for (int round = 0; round < 50; ++round) {
      const auto all = client->exchange(std::string(round * 1000, 'x') + std::to_string(rank));
      for (int r = 0; r < 4; ++r)
        require(all.at(r).back() == '0' + r, "round ", round, " rank ", r);
    }
    const int next = (rank + 1) % 4;
    client->post(concat("to ", next), concat("from ", rank));
    require(client->take(concat("to ", rank)) == concat("from ", (rank + 3) % 4), "a posted value");
    const auto endings = client->conclude("");
    require(endings == std::vector<std::string>(4, ""), "all ended well");
  });
}

TEST_CASE("an exchange may be longer than a frame; what is said at once may not") {
  Star star(3, 20, 20, /*most_bytes=*/1000);
  test::run_ranks(3, [&](Communicator& world) {
    const int rank = world.rank();
    const auto client = star.join(rank, 3);
    for (const size_t longest : {0, 300, 328, 329, 330, 1000, 5000}) {
      const auto text = [&](int r) { return std::string(longest * r / 2, 'a' + r) + " 1 2"; };
      const auto all = client->exchange(text(rank));
      for (int r = 0; r < 3; ++r) require(all.at(r) == text(r), longest, " bytes of rank ", r);
    }
    if (rank == 1) {
      const std::string message = test::require_error(
          ErrorCode::kInvalidArgument, [&] { client->post("key", std::string(1000, 'x')); },
          "a long post");
      require(message.find("1011 bytes are too many to say at once; 1000 is the most") !=
                  std::string::npos,
              message);
    }
    require(client->exchange("").size() == 3, "the job goes on");
    client->conclude("");
  });
}

TEST_CASE("a failed rank wakes the others and is told to all") {
  Star star(3);
  test::run_ranks(3, [&](Communicator& world) {
    const int rank = world.rank();
    const auto client = star.join(rank, 3);
    const std::string status = "torn file";
    if (rank != 2) {
      const std::string message = test::require_error(
          ErrorCode::kUnavailable, [&] { client->exchange("waits for rank 2"); }, "exchange");
      require(message == "rank 2 failed", message);
    }
    const auto endings = client->conclude(rank == 2 ? status : "secondary");
    require(endings.at(2) == status, "the root cause reaches rank ", rank);
  });
}

TEST_CASE("a rank that dies without a word ends the job of the others") {
  Star star(3);
  test::run_ranks(3, [&](Communicator& world) {
    const int rank = world.rank();
    if (rank == 2) {  // sends its hello by hand, then closes the connection like a killed process
      const test::Puppet puppet(star.port);
      puppet.say_hello(2, 3);
      const auto admission = control::Admission::unpack(puppet.hear(control::Kind::kAdmit));
      require(admission.proof == control::proof_of("random", "secret", "hub"), "the hub's proof");
      puppet.hear(control::Kind::kWelcome);
      return;
    }
    const auto client = star.join(rank, 3);
    const std::string message = test::require_error(
        ErrorCode::kUnavailable, [&] { client->exchange(""); }, "exchange");
    require(message == "rank 2 (host lost-host) has died", message);
    require(client->conclude("secondary").at(2) == "?", "a dead rank has no status");
  });
}

TEST_CASE("ranks that cannot be connected are named") {
  SECTION("missing") {
    Star star(4, 0.3);
    REQUIRE_THROWS_WITH(star.join(0, 4), test::contains("rank 1-3 of 4 did not connect"));
  }
  SECTION("another world size") {
    Star star(4);
    REQUIRE_THROWS_WITH(star.join(1, 3), test::contains("rank 1 on host") &&
                                             test::contains("world size 3, rank 0 with 4"));
  }
  SECTION("twice the same rank") {
    Star star(3);
    auto first = error_of([&] { star.join(1, 3); });
    CHECK_THROWS_WITH(star.join(1, 3), test::contains("two processes say they are rank 1"));
    REQUIRE_THAT(first.get(), test::contains("two processes say they are rank 1"));
  }
  SECTION("another secret: who comes with it is told, the others when a rank is missing") {
    Star star(2, 1);
    auto other = error_of([&] { star.join(0, 2); });
    CHECK_THROWS_WITH(star.join(1, 2, "guess"), test::contains("job secret of rank 1") &&
                                                    test::contains("TESSERA_JOB_SECRET"));
    REQUIRE_THAT(other.get(), test::contains("rank 1 of 2 did not connect within 1 s; 1 caller "
                                             "with another job secret came meanwhile, the last "
                                             "as rank 1 on host") &&
                                  test::contains("TESSERA_JOB_SECRET"));
  }
  SECTION("another job that gathers at this port") {
    Star star(2, 0.5);
    REQUIRE_THROWS_WITH(star.join(1, 2, "secret", "job 2"),
                        test::contains("another job gathers there ('job 1', not 'job 2')"));
  }
  SECTION("a job that runs at this port") {
    Star star(1);
    const auto only = star.join(0, 1);
    REQUIRE_THROWS_WITH(star.join(0, 1), test::contains("a job of 1 ranks is running there"));
  }
  SECTION("something else at this port") {
    REQUIRE_THAT(error_at([](const control::Socket& caller) {
                   require(::write(caller.fd(), "HTTP/1.1 400 Bad Request\r\n", 26) == 26, "write");
                 }),
                 test::contains("what answers there is not tessera"));
  }
  SECTION("a hub that does not know the secret") {
    REQUIRE_THAT(error_at([](const control::Socket& caller) {
                   control::send_frame(caller, control::Kind::kChallenge, "random");
                   control::receive_frame(caller, 20);
                   const control::Admission guessed{"guessed", "host", 20};
                   control::send_frame(caller, control::Kind::kAdmit, guessed.pack());
                 }),
                 test::contains("does not know the job's secret"));
  }
  SECTION("a busy port") {
    const control::Socket listener = control::listen_at("127.0.0.1", 0);
    REQUIRE_THROWS_WITH(control::listen_at("127.0.0.1", control::port_of(listener)),
                        test::contains("choose another MASTER_PORT"));
  }
}

}  // namespace
}  // namespace tessera
