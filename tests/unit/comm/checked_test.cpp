// SPDX-License-Identifier: MIT
#include "tessera/comm/checked.h"

#include "tests/conformance/communicator_conformance.hpp"
#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

namespace tessera {
namespace {

TEST_CASE("a checked communicator conforms like the one it wraps") {
  for (const test::ConformanceCase& each : test::conformance_cases()) {
    INFO(each.name);
    CHECK_NOTHROW(test::run_ranks(2, [&](Communicator& world) {
      const auto checked = check_collectives(world.split(0, world.rank()));
      each.run(*checked);
    }));
  }
}

TEST_CASE("the call that differs is named on every rank") {
  const auto run = [](const std::function<void(Communicator&)>& differ) {
    std::string message;
    test::run_ranks(3, [&](Communicator& world) {
      const auto checked = check_collectives(world.split(0, world.rank()));
      checked->barrier();
      const std::string mine = test::require_error(
          ErrorCode::kInvalidArgument, [&] { differ(*checked); }, "a call that differs");
      if (world.rank() == 0) message = mine;
    });
    return message;
  };
  REQUIRE(
      run([](Communicator& comm) {
        const at::Tensor mine = at::ones({comm.rank() == 2 ? 7 : 6});
        comm.all_reduce(mine).wait();
      })
          .find("called something else: all_reduce(6 x Float, sum) (call 1 of world.0c0 checked), "
                "step 0, start; ranks 0-1 have waited since ") != std::string::npos);
  REQUIRE(run([](Communicator& comm) {
            const at::Tensor mine = at::ones({6});
            comm.rank() == 1 ? comm.broadcast(mine, 1).wait() : comm.all_reduce(mine).wait();
          }).find("rank 1 called broadcast(6 x Float, root 1)") != std::string::npos);
  REQUIRE(run([](Communicator& comm) {
            if (comm.rank() != 2) comm.barrier();  // rank 2 skips a call
            const at::Tensor mine = at::ones({6});
            comm.all_reduce(mine, ReduceOp::kMax).wait();
          }).find("; rank 2 called all_reduce(6 x Float, max)") != std::string::npos);
}

TEST_CASE("a checked all_to_all names the pair that counts differently, on every rank") {
  test::run_ranks(3, [&](Communicator& world) {
    const auto checked = check_collectives(world.split(0, world.rank()));
    const std::vector<int64_t> gives =
        checked->rank() == 1 ? std::vector<int64_t>{2, 1, 0} : std::vector<int64_t>{1, 1, 1};
    const std::string message = test::require_error(
        ErrorCode::kInvalidArgument,
        [&] {
          checked->all_to_all(at::empty({3}), at::ones({3}), {1, 1, 1}, gives).wait();
        },
        "counts that differ");
    test::require(
        message.find("rank 1 gives rank 0 2 elements, which takes 1") != std::string::npos,
        message);
  });
}

TEST_CASE("checking is not counted as traffic") {
  test::run_ranks(2, [](Communicator& world) {
    const auto checked = check_collectives(world.split(0, world.rank()));
    at::Tensor x = at::ones({100});
    checked->all_reduce(x).wait();
    test::require(checked->bytes_sent() == 400, checked->bytes_sent());
  });
}

}  // namespace
}  // namespace tessera
