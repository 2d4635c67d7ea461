// SPDX-License-Identifier: MIT
#include "tessera/sharding/gradient_reducer.h"

#include <ATen/ATen.h>

#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;
using test::require;
using test::run_ranks;

namespace {

// A rank's values; thirds, so that bf16 must round them.
at::Tensor numbers(int rank, int64_t numel, at::ScalarType dtype) {
  return at::arange(1, numel + 1, at::kFloat).add(10 * rank).div(3).to(dtype);
}

// Expected reduction: every rank's value rounded to the reduce dtype, summed there with one
// rounding, and rounded back.
at::Tensor expected_sum(int ranks, int64_t numel, at::ScalarType dtype, at::ScalarType reduce) {
  at::Tensor sum = at::zeros({numel}, at::kFloat);
  for (int rank = 0; rank < ranks; ++rank) {
    sum += numbers(rank, numel, dtype).to(reduce).to(at::kFloat);
  }
  return sum.to(reduce).to(dtype);
}

}  // namespace

TEST_CASE("sums travel in the wire's dtype, in pieces of any size") {
  for (auto [dtype, reduce] :
       {std::pair(at::kFloat, at::kFloat), std::pair(at::kFloat, at::kBFloat16),
        std::pair(at::kBFloat16, at::kFloat), std::pair(at::kHalf, at::kBFloat16)}) {
    for (int64_t piece_bytes : {1, 64, 1000, 1 << 20}) {
      run_ranks(3, [&, dtype = dtype, reduce = reduce](Communicator& comm) {
        GradientReducer wire(comm.device(), dtype, reduce, piece_bytes, 60);
        require(wire.bytes() <= 2 * std::max<int64_t>(piece_bytes, 3 * 4),
                "staging is bounded: ", wire.bytes());
        const at::Tensor a = numbers(comm.rank(), 60, dtype), b = numbers(comm.rank(), 7, dtype);
        const at::Tensor full = numbers(comm.rank(), 60, dtype);
        const at::Tensor own = at::full({20}, 5, at::TensorOptions(dtype));
        const at::Tensor fresh = at::full({20}, 5, at::TensorOptions(dtype));
        const at::Tensor again = numbers(comm.rank(), 60, dtype);
        Reduction whole = wire.all_reduce(comm, {a, b});
        Reduction part = wire.reduce_scatter(comm, {{full, own, /*add=*/true}, {again, fresh}});
        part.wait();
        whole.wait();
        const at::Tensor sum = expected_sum(3, 60, dtype, reduce);
        require(a.equal(sum) && b.equal(expected_sum(3, 7, dtype, reduce)), "all-reduce");
        const at::Tensor mine = sum.narrow(0, 20 * comm.rank(), 20);
        require(fresh.equal(mine), "reduce-scatter");
        // Added in the gradients' dtype; bf16 gradients reduced in fp32 have one rounding of the
        // sum.
        const at::Tensor wide = expected_sum(3, 60, dtype, reduce).narrow(0, 20 * comm.rank(), 20);
        if (dtype == at::kFloat) require(own.equal(wide + 5), "added to the shard");
      });
    }
  }
}

TEST_CASE("a running sum is never rounded to the wire's dtype") {
  run_ranks(2, [](Communicator& comm) {
    GradientReducer wire(comm.device(), at::kFloat, at::kBFloat16, 1 << 20, 8);
    // 257 and 258 are not representable in bf16
    const at::Tensor shard = at::full({4}, 256, at::kFloat);
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      wire.reduce_scatter(comm, {{at::full({8}, 0.5), shard, /*add=*/true}}).wait();
    }
    require(shard.equal(at::full({4}, 258.0)), "256 + 1 + 1");
  });
}
