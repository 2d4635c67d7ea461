// SPDX-License-Identifier: MIT
#include "lib/testing/staged_communicator.h"

#include <ATen/ATen.h>

#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

namespace tessera::testing {
namespace {

using test::require_bit_equal;

at::Tensor drawn(const Communicator& comm, int64_t size) {
  return at::arange(size, at::kFloat) * 0.37 + comm.rank();
}

void check_collectives(Communicator& comm, Communicator& staged) {
  const int64_t ranks = comm.size();
  const at::Tensor sum = drawn(comm, 7), staged_sum = sum.clone();
  comm.all_reduce(sum).wait();
  Work work = staged.all_reduce(staged_sum);
  Work copy = work;
  require_bit_equal(staged_sum, drawn(comm, 7), "a sum that is not waited for");
  work.wait();
  require_bit_equal(staged_sum, sum, "sum");
  staged_sum.zero_();
  copy.wait();
  require_bit_equal(staged_sum, at::zeros_like(sum), "a sum that is waited for once more");

  const at::Tensor all = at::zeros({ranks * 3}), staged_all = at::zeros_like(all);
  comm.all_gather(all, drawn(comm, 3)).wait();
  staged.all_gather(staged_all, drawn(comm, 3)).wait();
  require_bit_equal(staged_all, all, "gather");

  const at::Tensor part = at::zeros({3}), staged_part = at::zeros_like(part);
  comm.reduce_scatter(part, drawn(comm, ranks * 3), ReduceOp::kMax).wait();
  staged.reduce_scatter(staged_part, drawn(comm, ranks * 3), ReduceOp::kMax).wait();
  require_bit_equal(staged_part, part, "reduce and scatter");

  const at::Tensor given = drawn(comm, 5);
  staged.broadcast(given, 1).wait();
  require_bit_equal(given, at::arange(5, at::kFloat) * 0.37 + 1, "broadcast");
}

// To the next rank, from the previous one.
void check_messages(Communicator& staged) {
  const int next = (staged.rank() + 1) % staged.size();
  const int last = (staged.rank() + staged.size() - 1) % staged.size();
  const at::Tensor came = at::zeros({4}), sent = drawn(staged, 4);
  const at::Tensor expected = at::arange(4, at::kFloat) * 0.37 + last;
  Work send = staged.send(sent, next);
  staged.recv(came, last).wait();
  send.wait();
  require_bit_equal(came, expected, "message");
  came.zero_();
  Group group(staged);
  staged.send(sent, next);
  staged.recv(came, last);
  group.end().wait();
  require_bit_equal(came, expected, "message in a group");
}

}  // namespace

TEST_CASE("operations that go through host memory give what the others give") {
  test::run_ranks(3, [](Communicator& world) {
    StagedCommunicator staged(world, at::kCPU);
    check_collectives(world, staged);
    check_messages(staged);
    const std::unique_ptr<Communicator> part =
        staged.split(world.rank() == 0 ? 0 : 1, -world.rank());
    test::require(part->size() == (world.rank() == 0 ? 1 : 2), "ranks of a part: ", part->size());
    const at::Tensor sum = at::full({1}, world.rank(), at::kLong);
    part->all_reduce(sum).wait();
    test::require(sum.item<int64_t>() == (world.rank() == 0 ? 0 : 3), "sum of a part");
    staged.barrier();
  });
}

}  // namespace tessera::testing
