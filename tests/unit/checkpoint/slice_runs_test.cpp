// SPDX-License-Identifier: MIT
#include "lib/checkpoint/slice_runs.h"

#include <map>

#include "tests/support/test.hpp"
#include "tests/unit/checkpoint/layouts.h"

using namespace tessera;
using namespace tessera::test;
using tessera::test::contains;

TEST_CASE("what two random slices share is what a map of their elements says") {
  std::mt19937_64 random(12);
  int64_t shared = 0, padded = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto shape = random_shape(random);
    const Cut cut_a = random_cut(shape, random), cut_b = random_cut(shape, random);
    const auto slices_a = slices_of(shape, cut_a), slices_b = slices_of(shape, cut_b);
    const TensorSlice& a = slices_a[random() % slices_a.size()];
    const TensorSlice& b = slices_b[random() % slices_b.size()];
    INFO("round " << round);
    REQUIRE(slice_defect(a) == "");
    std::map<int64_t, int64_t> expected, actual, in_b;  // index in a -> index in b
    const auto places_a = places(a), places_b = places(b);
    for (size_t i = 0; i < places_b.size(); ++i) in_b[places_b[i]] = static_cast<int64_t>(i);
    int64_t held = 0;
    for (size_t i = 0; i < places_a.size(); ++i) {
      if (places_a[i] < 0) continue;
      ++held;
      const auto found = in_b.find(places_a[i]);
      if (found != in_b.end()) expected[static_cast<int64_t>(i)] = found->second;
    }
    for_each_overlap(a, b, [&](int64_t from, int64_t to, int64_t size) {
      for (int64_t i = 0; i < size; ++i) REQUIRE(actual.emplace(from + i, to + i).second);
    });
    REQUIRE(actual == expected);
    REQUIRE(held_numel(a) == held);
    shared += static_cast<int64_t>(expected.size());
    padded += a.numel() - held;
  }
  CHECK(shared > 10'000);
  CHECK(padded > 1'000);
}

TEST_CASE("the pieces of every cut fill the tensor; one left out or twice is noticed") {
  std::mt19937_64 random(5);
  int64_t holes = 0;
  for (int round = 0; round < 2000; ++round) {
    const auto shape = random_shape(random);
    auto slices = slices_of(shape, random_cut(shape, random));
    INFO("round " << round);
    REQUIRE(tiling_defect(slices) == "");
    const TensorSlice slice = slices[random() % slices.size()];
    if (slice.numel() == 0 || all_padding(slice)) continue;
    auto doubled = slices;
    doubled.push_back(slice);
    REQUIRE_THAT(tiling_defect(doubled), contains("in two pieces"));
    std::erase(slices, slice);
    REQUIRE(tiling_defect(slices) != "");
    ++holes;
  }
  CHECK(holes > 1000);
}

TEST_CASE("slices that cannot be are named") {
  const TensorSlice good{
      .shape = {4, 6}, .dim = 1, .local_size = 3, .intervals = {{0, 2, 2}}, .begin = 0, .end = 12};
  REQUIRE(slice_defect(good) == "");
  const auto defect = [&](const auto& change) {
    TensorSlice slice = good;
    change(slice);
    return slice_defect(slice);
  };
  CHECK_THAT(defect([](auto& s) { s.shape[0] = -1; }), contains("negative"));
  CHECK_THAT(defect([](auto& s) { s.shape[0] = int64_t{1} << 62; }), contains("overflows"));
  CHECK_THAT(defect([](auto& s) { s.shape = {0, int64_t{1} << 62, 4}; }), contains("overflows"));
  CHECK_THAT(defect([](auto& s) { s.dim = 2; }), contains("dimension 2 of 2"));
  CHECK_THAT(defect([](auto& s) { s.dim = -1; }), contains("not sliced"));
  CHECK_THAT(defect([](auto& s) { s.intervals[0].size = 4; }), contains("leaves the tensor"));
  CHECK_THAT(defect([](auto& s) { s.intervals[0].global = 5; }), contains("leaves the tensor"));
  CHECK_THAT(defect([](auto& s) { s.intervals.push_back({1, 4, 1}); }), contains("out of order"));
  CHECK_THAT(defect([](auto& s) { s.end = 13; }), contains("elements [0, 13)"));
  CHECK_THAT(defect([](auto& s) { s.begin = 13; }), contains("elements [13, 12)"));
  TensorSlice other = good;
  other.dim = 0;
  other.local_size = 4;
  CHECK_THAT(tiling_defect({good, other}), contains("different dimensions"));
  CHECK_THAT(tiling_defect({}), contains("no pieces"));
}
