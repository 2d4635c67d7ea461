// SPDX-License-Identifier: MIT
// Ranks on hosts with IPv6 addresses only, using the IPv6 loopback.
#include <ifaddrs.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "lib/comm/launch/rendezvous.h"
#include "tests/support/test.hpp"
#include "tests/unit/comm/star.hpp"
#include "tests/unit/comm/tcp_sum.hpp"

namespace tessera {
namespace {

using test::require;

constexpr const char* kLoopback = "::1";

bool has_ipv6() {
  const control::Socket socket(::socket(AF_INET6, SOCK_STREAM, 0));
  sockaddr_in6 address{};
  address.sin6_family = AF_INET6;
  address.sin6_addr = in6addr_loopback;
  return ::bind(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
}

TEST_CASE("ranks meet over IPv6, and send tensors") {
  if (!has_ipv6()) return;
  control::Socket listener = control::listen_at(kLoopback, 0);
  const int port = control::port_of(listener);
  control::Hub hub(std::move(listener), 2, "job", "secret", 20);
  test::run_ranks(2, [&](Communicator& local) {
    const Endpoints there{[&] { return std::vector<Rendezvous>{{kLoopback, port, "secret"}}; }};
    control::ControlClient client(there, {local.rank(), 2, "job"}, 20,
                                  std::make_shared<AbortSignal>());
    require(client.address() == kLoopback && control::is_loopback(client.address()), "address");
    CommunicatorChannel channel(local);
    test::require_tcp_sum(local, channel, kLoopback);
    client.conclude("");
  });
}

// If rank 0's own name is loopback, as on Debian, it listens on every interface.
TEST_CASE("who listens on every interface is reached over IPv6, too") {
  if (!has_ipv6()) return;
  const control::Socket listener = control::listen_at("", 0);
  for (const char* address : {"127.0.0.1", kLoopback}) {
    std::string why;
    const auto socket = control::try_connect(address, control::port_of(listener), 5, why);
    INFO(address << ": " << why);
    CHECK(socket.open());
  }
}

TEST_CASE("an address and its port are told apart in messages") {
  if (!has_ipv6()) return;
  const control::Socket listener = control::listen_at(kLoopback, 0);
  const int port = control::port_of(listener);
  REQUIRE_THROWS_WITH(control::listen_at(kLoopback, port),
                      test::contains(concat("[::1]:", port, ": ")));
}

}  // namespace
}  // namespace tessera
