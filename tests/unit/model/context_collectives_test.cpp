// SPDX-License-Identifier: MIT
#include "lib/model/context_collectives.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/support/ranks.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

constexpr int kRanks = 3;

// Own columns: pieces r and 2 N - 1 - r.
at::Tensor own(const at::Tensor& rows, int rank) {
  const auto pieces = rows.chunk(2 * kRanks, 1);
  return at::cat({pieces[rank], pieces[2 * kRanks - 1 - rank]}, 1);
}

// Numbers that differ everywhere.
at::Tensor distinct(at::IntArrayRef shape) {
  return at::arange(c10::multiply_integers(shape), at::kDouble).view(shape);
}

}  // namespace

TEST_CASE("a gathered row is in order, and its gradient is summed over the ranks") {
  test::run_ranks(kRanks, [](Communicator& ranks) {
    const at::Tensor row = distinct({2, 12, 3});
    const at::Tensor mine = own(row, ranks.rank()).set_requires_grad(true);
    const at::Tensor all = gather_row(mine, ranks);
    test::require_bit_equal(all.detach(), row, "the row");
    const at::Tensor weights = row * (1.0 + ranks.rank());
    torch::autograd::backward({(all * weights).sum()});
    test::require_bit_equal(mine.grad(), own(row * 6.0, ranks.rank()), "the gradient");
  });
}

TEST_CASE("tokens of all heads become whole rows of some heads, and back") {
  test::run_ranks(kRanks, [](Communicator& ranks) {
    const at::Tensor all = distinct({2, 12, kRanks, 5});
    const at::Tensor mine = own(all, ranks.rank()).set_requires_grad(true);
    const at::Tensor heads = tokens_to_heads(mine, ranks);
    test::require_bit_equal(heads.detach(), all.select(2, ranks.rank()), "the rank's heads");
    const at::Tensor tokens = heads_to_tokens(heads, ranks);
    test::require_bit_equal(tokens.detach(), mine.detach(), "the rank's tokens");
    const at::Tensor weights = own(all + 0.5, ranks.rank());
    torch::autograd::backward({(tokens * weights).sum()});
    test::require_bit_equal(mine.grad(), weights, "the gradient");
  });
}
