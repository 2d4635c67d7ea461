// SPDX-License-Identifier: MIT
#include "lib/checkpoint/block_slice.h"

#include <map>
#include <set>

#include "lib/checkpoint/slice_runs.h"
#include "tests/support/test.hpp"
#include "tests/unit/checkpoint/layouts.h"

using namespace tessera;
using namespace tessera::test;
using tessera::test::contains;

namespace {

// Indices of the blocks with at least one element in the slice.
std::set<int64_t> blocks_held(const TensorSlice& slice, int64_t block) {
  std::set<int64_t> held;
  for (int64_t place : places(slice)) {
    if (place >= 0) held.insert(place / block);
  }
  return held;
}

// True if every block is complete and contiguous.
bool whole_blocks(const TensorSlice& slice, int64_t block) {
  std::map<int64_t, int64_t> count;
  const auto all = places(slice);
  int64_t numel = 1;
  for (int64_t size : slice.shape) numel *= size;
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i] < 0) continue;
    ++count[all[i] / block];
    const bool starts = all[i] % block == 0;
    if (starts && static_cast<int64_t>(i) % block != 0) return false;
    if (!starts && (i == 0 || all[i - 1] != all[i] - 1)) return false;
  }
  for (const auto& [number, elements] : count) {
    if (elements != std::min(block, numel - number * block)) return false;
  }
  return true;
}

}  // namespace

TEST_CASE("a slice of whole blocks is a slice of the tensor of blocks") {
  std::mt19937_64 random(5);
  int64_t cut = 0, whole = 0, refused = 0;
  for (int round = 0; round < 4000; ++round) {
    const int64_t block = uniform(random, 1, 4);
    const auto shape = random_shape(random);
    TensorSlice slice = slices_of(shape, random_cut(shape, random)).front();
    slice.begin = slice.begin / block * block;
    INFO("round " << round << ", blocks of " << block);
    if (!block_defect(slice, block).empty()) {
      ++refused;
      continue;
    }
    TensorSlice local = slice;
    local.begin = 0;
    local.end = local_numel(slice);
    REQUIRE(whole_blocks(local, block));
    const TensorSlice blocks = slice_in_blocks(slice, block);
    REQUIRE(blocks.shape == shape_in_blocks(shape, block));
    REQUIRE(slice_defect(blocks) == "");
    std::set<int64_t> expected = blocks_held(slice, block), actual;
    for (int64_t place : places(blocks)) {
      if (place >= 0) actual.insert(place);
    }
    REQUIRE(actual == expected);
    (slice.dim < 0 ? whole : cut) += 1;
  }
  CHECK(whole > 500);
  CHECK(cut > 300);
  CHECK(refused > 300);
}

TEST_CASE("what cuts through blocks is said with shape and dimension") {
  TensorSlice slice{
      .shape = {4, 512}, .dim = 1, .local_size = 128, .intervals = {{0, 128, 128}}, .end = 512};
  CHECK(block_defect(slice, 256) ==
        "slices of dimension 1 of shape [4, 512] begin or end inside blocks of 256 elements");
  CHECK_THROWS_WITH(slice_in_blocks(slice, 256), contains("inside blocks of 256"));
  slice.local_size = 256;
  slice.intervals = {{0, 256, 256}};
  slice.end = 1024;
  const TensorSlice blocks = slice_in_blocks(slice, 256);
  CHECK(blocks.shape == std::vector<int64_t>{4, 2});
  CHECK(blocks.end == 4);
  CHECK(blocks.intervals.front() == TensorSlice::Interval{0, 1, 1});
  CHECK(shape_in_blocks({3, 100}, 256) == std::vector<int64_t>{2});
  slice.begin = 100;
  CHECK_THROWS_WITH(slice_in_blocks(slice, 256), contains("does not begin with a block"));
}
