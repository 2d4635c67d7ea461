// SPDX-License-Identifier: MIT
// Limits of what strangers and early ranks can take from a rank of the TCP transport.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <new>

#include "lib/comm/control/wire.h"
#include "lib/comm/tcp/mesh.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"
#include "tests/unit/comm/tcp_sum.hpp"

namespace tessera {
namespace {

using test::require;

// Strangers connect to rank 0 as soon as its address is published, before rank 1 can.
class BesiegedChannel final : public ControlChannel {
 public:
  BesiegedChannel(Communicator& world, std::vector<control::Socket>& strangers)
      : channel_(world), strangers_(&strangers) {}
  int rank() const override { return channel_.rank(); }
  int size() const override { return channel_.size(); }
  std::vector<std::string> exchange(const std::string& bytes) override {
    std::vector<std::string> all = channel_.exchange(bytes);
    if (rank() == 1) {
      const std::vector<std::string> door = control::unpack(all.at(0));
      for (int i = 0; i < 30; ++i) {
        strangers_->push_back(
            control::connect_to(door.at(0), std::stoi(door.at(1)), 20, "the door of rank 0"));
        const std::string bytes[] = {"", std::string("\x01\xff\xff\xff\x0f", 5), "x"};
        require(::write(strangers_->back().fd(), bytes[i % 3].data(), bytes[i % 3].size()) >= 0,
                "a stranger's bytes");
      }
    }
    return all;
  }

 private:
  CommunicatorChannel channel_;
  std::vector<control::Socket>* strangers_;
};

TEST_CASE("tcp: strangers at a rank's door do not keep the others out") {
  std::vector<control::Socket> strangers;
  const auto begin = control::Clock::now();
  test::run_ranks(2, [&](Communicator& local) {
    BesiegedChannel channel(local, strangers);
    test::require_tcp_sum(local, channel, "127.0.0.1");
  });
  // Sequentially they would have taken 5 s each.
  CHECK(control::Clock::now() - begin < std::chrono::seconds(25));
}

struct Pair {
  Pair() {
    int ends[2];
    require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
    other = control::Socket(ends[0]);
    std::vector<control::Socket> peers(2);
    peers[1] = control::Socket(ends[1]);
    mesh = std::make_unique<tcp::Mesh>(std::move(peers), std::make_shared<AbortSignal>());
  }
  control::Socket other;
  std::unique_ptr<tcp::Mesh> mesh;
};

TEST_CASE("tcp: a rank that runs ahead waits until it is asked") {
  constexpr uint64_t kSize = 16 << 20;
  Pair pair;
  control::never_block(pair.other);
  std::vector<char> message(sizeof(uint64_t) * 5 + kSize);
  const auto post = [&](uint64_t sequence) {  // false when the other end accepts no more
    const uint64_t header[] = {7, sequence, 0, kSize, 0};
    std::memcpy(message.data(), header, sizeof header);
    for (size_t sent = 0; sent < message.size();) {
      pollfd wait{pair.other.fd(), POLLOUT, 0};
      if (::poll(&wait, 1, 1000) == 0) return false;
      const ssize_t n = ::write(pair.other.fd(), message.data() + sent, message.size() - sent);
      if (n > 0) sent += static_cast<size_t>(n);
    }
    return true;
  };
  uint64_t posted = 0;
  while (posted < 24 && post(posted)) ++posted;
  REQUIRE(posted >= 15);
  REQUIRE(posted <= 17);  // 256 MiB plus socket buffers
  std::vector<char> bytes(kSize);
  for (uint64_t sequence = 0; sequence < posted; ++sequence) {
    auto operation = std::make_shared<tcp::Transfer>();
    operation->communicator = 7;
    operation->sequence = sequence;
    tcp::Transfer* raw = operation.get();
    operation->steps.push_back(
        [&pair, &bytes, raw] { pair.mesh->receive(*raw, 1, 0, bytes.data(), kSize); });
    pair.mesh->start(operation);
    REQUIRE(pair.mesh->wait(*operation, std::chrono::seconds(60)));
    REQUIRE(operation->error == "");
  }
}

TEST_CASE("tcp: an operation that runs out of memory on the mesh's thread fails, not the process") {
  Pair pair;
  auto operation = std::make_shared<tcp::Transfer>();
  char byte = 0;
  tcp::Transfer* raw = operation.get();
  operation->steps.push_back([&pair, &byte, raw] { pair.mesh->receive(*raw, 1, 0, &byte, 1); });
  operation->steps.push_back([] { throw std::bad_alloc(); });
  pair.mesh->start(operation);
  const struct {
    uint64_t header[5] = {0, 0, 0, 1, 0};
    char byte = 1;
  } message;
  REQUIRE(::write(pair.other.fd(), &message, 41) == 41);
  REQUIRE(pair.mesh->wait(*operation, std::chrono::seconds(60)));
  CHECK_THAT(operation->error, test::contains("bad_alloc"));
}

}  // namespace
}  // namespace tessera
