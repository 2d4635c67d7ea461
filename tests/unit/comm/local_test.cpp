// SPDX-License-Identifier: MIT
#include "tessera/comm/local.h"

#include <ATen/Parallel.h>
#include <pthread.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <thread>
#include <vector>

#include "lib/core/vector_math.h"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

namespace tessera {
namespace {

using test::require;
using test::require_error;

TEST_CASE("functions of vector math have their kernels before ranks call them") {
  test::run_ranks(2, [](Communicator&) {
    require(is_vector_math_resolved(), "a rank runs before they are resolved");
    test::require_bit_equal(at::full({}, 40.9477806, at::kFloat).sqrt(),
                            at::full({}, 6.39904547, at::kFloat), "square root");
  });
}

TEST_CASE("sums are added in rank order, whatever the timing") {
  // In fp32 (1e8 + 1) - 1e8 is 0 and (1e8 - 1e8) + 1 is 1, so only rank order gives the expected
  // bits.
  for (int repeat = 0; repeat < 20; ++repeat) {
    test::run_ranks(3, [](Communicator& comm) {
      const float values[] = {1e8F, 1, -1e8F};
      at::Tensor x = at::full({100'000}, values[comm.rank()]);
      comm.all_reduce(x).wait();
      test::require_bit_equal(x, at::zeros({100'000}), "sum");
    });
  }
}

#ifndef __SANITIZE_ADDRESS__  // which reserves address space
// Address space in use, in bytes.
rlim_t address_space() {
  rlim_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<rlim_t>(sysconf(_SC_PAGESIZE));
}

TEST_CASE("a host without threads for all ranks: an error, and the started ranks end") {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    at::set_num_threads(at::get_num_threads());  // makes LibTorch's pool anew, with its threads
    // Room for two stacks, which are larger than those that earlier threads left, and for the heaps
    // of two ranks.
    constexpr rlim_t kStack = rlim_t{1} << 30;
    pthread_attr_t attributes;
    const bool is_set = pthread_attr_init(&attributes) == 0 &&
                        pthread_attr_setstacksize(&attributes, kStack) == 0 &&
                        pthread_setattr_default_np(&attributes) == 0;
    const rlim_t most = address_space() + 5 * kStack / 2;
    const rlimit limit{most, most};
    if (!is_set || setrlimit(RLIMIT_AS, &limit) != 0) _exit(1);
    try {
      run_local_ranks(8, [](Communicator& comm) {  // each waits for one that never starts
        comm.recv(at::zeros({1}), (comm.rank() + 6) % 8).wait();
      });
      _exit(2);
    } catch (const Error& error) {
      const std::string text = error.what();
      const bool named = text.find("no thread for rank") != std::string::npos;
      _exit(error.code() == ErrorCode::kResourceExhausted && named ? 0 : 3);
    } catch (...) {
      _exit(4);
    }
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 0);
}
#endif

TEST_CASE("the first error of a rank is rethrown, not the ones it causes") {
  std::atomic<int> unavailable{0};
  REQUIRE_THROWS_WITH(
      test::run_ranks(
          4,
          [&](Communicator& comm) {
            if (comm.rank() == 2) throw std::runtime_error("my own");
            at::Tensor x = at::ones({10});
            const std::string message = require_error(
                ErrorCode::kUnavailable, [&] { comm.all_reduce(x).wait(); }, "all_reduce");
            require(message.find("rank 2 failed: my own") != std::string::npos, message);
            ++unavailable;
            require_error(
                ErrorCode::kUnavailable, [&] { comm.barrier(); },
                "an aborted communicator's barrier");
          }),
      "my own");
  REQUIRE(unavailable == 3);
}

TEST_CASE("an abort reaches the groups that were split from it") {
  REQUIRE_THROWS_WITH(test::run_ranks(4,
                                      [](Communicator& world) {
                                        auto half = world.split(world.rank() / 2, world.rank());
                                        auto quarter = half->split(0, 0);
                                        if (world.rank() == 0) {
                                          world.abort("enough");
                                          return;
                                        }
                                        at::Tensor x = at::ones({1});
                                        quarter->recv(x, 1 - quarter->rank()).wait();
                                      }),
                      test::contains("enough"));
}

TEST_CASE("calls that do not match are named by operation, rank and number") {
  REQUIRE_THROWS_WITH(
      test::run_ranks(3,
                      [](Communicator& comm) {
                        at::Tensor x = at::ones({comm.rank() == 1 ? 7 : 6});
                        comm.barrier();
                        comm.all_reduce(x).wait();
                      }),
      test::starts_with("rank 1 (host ") &&
          test::contains("called something else: all_reduce(6 x Float, sum) (call 1 of world)") &&
          test::contains("rank 1 called all_reduce(7 x Float, sum) (call 1 of world)"));
}

TEST_CASE("a rank that ends without a collective the others wait in is named") {
  REQUIRE_THROWS_WITH(test::run_ranks(3,
                                      [](Communicator& comm) {
                                        if (comm.rank() == 1) return;
                                        at::Tensor x = at::ones({6});
                                        comm.all_reduce(x).wait();
                                      }),
                      test::starts_with("rank 1 (host ") &&
                          test::contains("has ended: all_reduce(6 x Float, sum) (call 0 of ") &&
                          test::contains(" waited since 20") &&
                          test::contains("; rank 1 has called nothing"));
  REQUIRE_THROWS_WITH(test::run_ranks(2,
                                      [](Communicator& comm) {
                                        if (comm.rank() == 1) return;
                                        at::Tensor x = at::ones({6});
                                        comm.recv(x, 1).wait();
                                      }),
                      test::contains("has ended: recv(6 x Float) (message 0 from rank 1 to "
                                     "rank 0 of world)"));
}

TEST_CASE("every rank that waits for a rank that has ended says the same of it") {
  std::vector<std::string> said(3);
  test::run_ranks(3, [&](Communicator& comm) {
    if (comm.rank() == 1) return;
    if (comm.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    at::Tensor x = at::ones({6});
    try {
      comm.recv(x, 1).wait();
    } catch (const Error& error) {
      said[comm.rank()] = error.what();
    }
  });
  CHECK_THAT(said[0], test::contains("has ended: recv(6 x Float) (message 0 from rank 1 to "));
  CHECK(said[2] == said[0]);
}

TEST_CASE("work may be dropped and its communicator may go first") {
  test::run_ranks(2, [](Communicator& world) {
    auto comm = world.split(0, world.rank());
    at::Tensor x = at::full({1 << 20}, world.rank());
    Work work = comm->all_reduce(x);
    if (world.rank() == 0) comm->send(at::full({5}, 3.F), 1);
    at::Tensor received = at::empty({5});
    if (world.rank() == 1) comm->recv(received, 0).wait();
    comm.reset();
    work.wait();
    test::require_bit_equal(x, at::full({1 << 20}, 1L), "sum");
    if (world.rank() == 1) test::require_bit_equal(received, at::full({5}, 3.F), "message");
  });
}

TEST_CASE("arguments that cannot work are refused before anything is sent") {
  test::run_ranks(2, [](Communicator& comm) {
    const auto refuse = [&](const std::function<void()>& fn, const std::string& text) {
      const std::string message = require_error(ErrorCode::kInvalidArgument, fn, text);
      require(message.find(text) != std::string::npos, message);
    };
    const at::Tensor x = at::ones({4, 6});
    refuse([&] { comm.all_reduce(x.t()); }, "not contiguous");
    refuse([&] { comm.all_reduce(at::ones({3}, at::kBool)); }, "is not one of");
    refuse([&] { comm.all_reduce(at::Tensor()); }, "undefined");
    refuse([&] { comm.all_gather(at::ones({5}), at::ones({2})); }, "expected 2 ranks x 2");
    refuse([&] { comm.reduce_scatter(at::ones({2}), at::ones({5})); }, "expected 2 ranks x 2");
    const at::Tensor whole = at::ones({8});
    refuse([&] { comm.all_gather(whole, whole.narrow(0, comm.rank() == 0 ? 4 : 0, 4)); },
           "overlap");
    refuse([&] { comm.all_to_all(at::ones({5}), at::ones({5})); }, "no 2 equal parts");
    refuse([&] { comm.all_to_all(at::ones({4}), at::ones({6})); }, "4 elements, the input 6");
    refuse([&] { comm.all_to_all(whole, whole); }, "overlap");
    refuse([&] { comm.all_to_all(at::ones({3}), at::ones({3}), {3}, {3}); }, "1 counts");
    refuse([&] { comm.all_to_all(at::ones({3}), at::ones({3}), {4, -1}, {4, -1}); }, "below 0");
    refuse([&] { comm.all_to_all(at::ones({3}), at::ones({3}), {1, 1}, {1, 2}); }, "make 2");
    refuse(
        [&] {
          std::vector<int64_t> takes{1, 1}, gives{1, 1};
          takes[static_cast<size_t>(comm.rank())] = 2;
          comm.all_to_all(at::ones({3}), at::ones({2}), takes, gives);
        },
        "gives itself 1 elements and takes 2");
    refuse([&] { comm.broadcast(x, 2); }, "root 2");
    refuse([&] { comm.send(x, comm.rank()); }, "itself");
    refuse([&] { comm.end_group(); }, "no begin_group");
    refuse(
        [&] {
          Group group(comm);
          comm.all_reduce(x.t());
          group.end();
        },
        "not contiguous");
    refuse(
        [&] {
          Group group(comm);
          comm.barrier();
        },
        "inside a group");
    comm.barrier();
  });
}

TEST_CASE("bytes are counted in the ring model") {
  test::run_ranks(4, [](Communicator& comm) {
    at::Tensor x = at::ones({400});
    comm.all_reduce(x).wait();
    require(comm.bytes_sent() == 2 * 3 * 1600 / 4, "all_reduce: ", comm.bytes_sent());
    at::Tensor part = at::ones({100});
    comm.all_gather(x, part).wait();
    comm.reduce_scatter(part, x).wait();
    require(comm.bytes_sent() == 2400 + 1200 + 1200, "gather and scatter: ", comm.bytes_sent());
    comm.all_to_all(at::empty({400}), x).wait();
    require(comm.bytes_sent() == 4800 + 1200, "all_to_all: ", comm.bytes_sent());
    // From rank f to rank t: f + t elements.
    std::vector<int64_t> counts;
    for (int r = 0; r < 4; ++r) counts.push_back(comm.rank() + r);
    const int64_t all = 6 + 4 * comm.rank();
    comm.all_to_all(at::empty({all}), at::ones({all}), counts, counts).wait();
    require(comm.bytes_sent() == 6000 + 4 * (all - 2 * comm.rank()), comm.bytes_sent());
  });
}

TEST_CASE("parts that two ranks count differently are named by both") {
  // Equal totals, but different counts.
  REQUIRE_THROWS_WITH(
      test::run_ranks(3,
                      [](Communicator& comm) {
                        const std::vector<int64_t> gives = comm.rank() == 1
                                                               ? std::vector<int64_t>{2, 1, 0}
                                                               : std::vector<int64_t>{1, 1, 1};
                        comm.all_to_all(at::empty({3}), at::ones({3}), {1, 1, 1}, gives).wait();
                      }),
      test::contains("rank 1 gives rank 0 2 elements, which takes 1: all_to_all(Float, unequal "
                     "parts) (call 0 of world)"));
}

}  // namespace
}  // namespace tessera
