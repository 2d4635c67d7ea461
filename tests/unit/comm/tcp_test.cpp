// SPDX-License-Identifier: MIT
#include <ATen/ATen.h>
#include <sys/socket.h>

#include <thread>

#include "lib/comm/tcp/tcp_communicator.h"
#include "tests/conformance/communicator_conformance.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

namespace tessera {
namespace {

using tcp::Mesh;
using tcp::TcpCommunicator;
using test::require;

// Ranks of the TCP transport as threads of this process, over connected socket pairs.
struct TcpWorld {
  explicit TcpWorld(int size) {
    std::vector<std::vector<control::Socket>> sockets(size);
    for (auto& row : sockets) row.resize(size);
    for (int a = 0; a < size; ++a) {
      for (int b = 0; b < a; ++b) {
        int ends[2];
        require(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair");
        sockets[a][b] = control::Socket(ends[0]);
        sockets[b][a] = control::Socket(ends[1]);
      }
    }
    std::vector<int> ranks;
    for (int r = 0; r < size; ++r) ranks.push_back(r);
    for (int r = 0; r < size; ++r) {
      auto job = std::make_shared<tcp::Job>();
      job->mesh = std::make_unique<Mesh>(std::move(sockets[r]), signal);
      job->abort = [this](const std::string& reason) { signal->raise(reason); };
      job->log = std::make_shared<OperationLog>(r);
      job->report = [this](const LoggedCall& call, const std::string& cause) {
        signal->raise(
            CallFailure{.cause = cause, .call = call.text(), .ranks = {}}.explain().what());
      };
      world.push_back(std::make_unique<TcpCommunicator>("world", r, ranks, std::move(job)));
    }
  }
  std::shared_ptr<AbortSignal> signal = std::make_shared<AbortSignal>();
  std::vector<std::unique_ptr<Communicator>> world;
};

TEST_CASE("tcp: sums are those of in-process ranks, bit for bit, over several segments") {
  constexpr int kRanks = 3;
  TcpWorld tcp(kRanks);
  test::run_ranks(kRanks, [&](Communicator& local) {
    Communicator& remote = *tcp.world[local.rank()];
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const at::Tensor x = (at::arange(3 * 1'500'001) * (local.rank() + 1)).to(at::kFloat).sin();
      const at::Tensor a = x.to(dtype), b = x.to(dtype);
      local.all_reduce(a).wait();
      remote.all_reduce(b).wait();
      test::require_bit_equal(b, a, concat("all_reduce of ", dtype));
      const at::Tensor input = x.to(dtype);
      const at::Tensor c = at::empty({1'500'001}, input.options()), d = at::empty_like(c);
      local.reduce_scatter(c, input).wait();
      remote.reduce_scatter(d, input).wait();
      test::require_bit_equal(d, c, concat("reduce_scatter of ", dtype));
    }
  });
}

TEST_CASE("tcp: messages wait until they are asked for; sizes must agree") {
  TcpWorld tcp(2);
  Communicator &a = *tcp.world[0], &b = *tcp.world[1];
  std::vector<Work> sent;
  for (int i = 0; i < 3; ++i) sent.push_back(a.send(at::full({100'000}, i, at::kFloat), 1));
  for (Work& work : sent) work.wait();
  for (int i = 0; i < 3; ++i) {
    const at::Tensor x = at::empty({100'000}, at::kFloat);
    b.recv(x, 0).wait();
    test::require_bit_equal(x, at::full({100'000}, i, at::kFloat), concat("message ", i));
  }
  for (const bool asked_first : {true, false}) {
    TcpWorld other(2);
    Communicator &a = *other.world[0], &b = *other.world[1];
    const at::Tensor two = at::zeros({2}, at::kFloat), three = at::zeros({3}, at::kFloat);
    const auto send = [&] { a.send(two, 1).wait(); };
    if (!asked_first) send();
    Work work = b.recv(three, 0);
    if (asked_first) send();
    REQUIRE_THROWS_WITH(
        work.wait(), test::starts_with("8 bytes of another operation arrived from rank 0, expected "
                                       "12: recv(3 x Float) (message 0 from rank 0"));
  }
}

TEST_CASE("tcp: messages of another operation are refused") {
  for (const bool asked_first : {true, false}) {
    TcpWorld tcp(2);
    const at::Tensor floats = at::ones({4}), integers = at::ones({4}, at::kInt);
    Work first = tcp.world[0]->all_reduce(asked_first ? floats : integers);
    Work second = tcp.world[1]->all_reduce(asked_first ? integers : floats);
    CHECK_THROWS_WITH(second.wait(), test::contains("16 bytes of another operation") ||
                                         test::contains("8 bytes of another operation"));
  }
}

TEST_CASE("tcp: a rank whose connection ends is named, and so is one that an abort interrupts") {
  SECTION("the connection ends") {
    TcpWorld tcp(3);
    const at::Tensor x = at::ones({5});
    Work pending = tcp.world[0]->all_reduce(x);
    tcp.world[2].reset();
    REQUIRE_THROWS_WITH(pending.wait(),
                        test::starts_with("rank 2 has closed its connection: all_reduce(5 x "
                                          "Float, sum) (call 0 of world), step 0, start"));
    CHECK_THROWS_WITH(tcp.world[0]->recv(x, 2), test::contains("all_reduce(5 x Float, sum)"));
  }
  SECTION("abort") {
    TcpWorld tcp(2);
    Work pending = tcp.world[0]->recv(at::ones({5}), 1);
    std::thread other([&] { tcp.world[1]->abort("rank 1 gives up"); });
    CHECK_THROWS_WITH(pending.wait(), "rank 1 gives up");
    other.join();
    REQUIRE_THROWS_WITH(tcp.world[0]->all_reduce(at::ones({5})), "rank 1 gives up");
  }
}

}  // namespace
}  // namespace tessera
