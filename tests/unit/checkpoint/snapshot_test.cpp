// SPDX-License-Identifier: MIT
#include "lib/checkpoint/snapshot.h"

#include <ATen/ATen.h>

#include "tests/support/test.hpp"

using namespace tessera;

namespace {

// A piece with elements [begin, begin + size) of a memory block.
ShardPiece piece(const char* name, const char* kind, const at::Tensor& memory, int64_t begin,
                 int64_t size) {
  const TensorSlice slice{.shape = {size}, .end = size};
  return {{name, kind}, slice, memory.narrow(0, begin, size)};
}

}  // namespace

TEST_CASE("copies of values side by side, apart, of several dtypes and kinds are the values") {
  const at::Tensor floats = at::arange(101'000, at::kFloat), doubles = at::arange(8, at::kDouble);
  const std::vector<ShardPiece> pieces = {piece("b", "exp_avg", floats, 3'000, 1'000),
                                          piece("a", "exp_avg", floats, 0, 3'000),
                                          piece("far", "exp_avg", floats, 50'000, 50'000),
                                          piece("gap", "exp_avg", floats, 4'007, 900),
                                          piece("mean", "buffer", floats, 100'000, 500),
                                          piece("steps", "step_count", doubles, 5, 1),
                                          piece("inside", "exp_avg", floats, 1'000, 2'500),
                                          piece("none", "exp_avg", floats, 100'000, 0)};
  std::vector<at::Tensor> expected;
  for (const ShardPiece& one : pieces) expected.push_back(one.value.clone());
  for (const bool late : {false, true}) {
    Snapshot snapshot(/*host_ranks=*/1);
    snapshot.reserve(pieces);
    std::vector<ShardPiece> copies = pieces;
    REQUIRE(snapshot.take(copies, late));
    CHECK(snapshot.has_rest() == late);
    if (late) {  // values that forward may change are copied already
      floats.narrow(0, 100'000, 500).fill_(-1);
      doubles.fill_(-1);
      snapshot.copy_the_rest();
    }
    snapshot.give(copies);
    floats.fill_(-2);
    for (size_t i = 0; i < copies.size(); ++i) {
      INFO(copies[i].key.name << (late ? " late" : ""));
      CHECK(copies[i].value.equal(expected[i]));
    }
    floats.copy_(at::arange(101'000, at::kFloat));
    doubles.copy_(at::arange(8, at::kDouble));
  }
}

TEST_CASE("nothing is copied where neither memory has room") {
  const at::Tensor values = at::zeros({1 << 20});
  Snapshot snapshot(/*host_ranks=*/1 << 20);  // each may use only its share of the host's memory
  std::vector<ShardPiece> pieces = {piece("w", "exp_avg", values, 0, values.numel())};
  CHECK_FALSE(snapshot.take(pieces, false));
  CHECK(pieces[0].value.is_alias_of(values));
}
