// SPDX-License-Identifier: MIT
#include "lib/metrics/watches.h"

#include <cmath>
#include <vector>

#include "tests/support/test.hpp"

using namespace tessera::metrics;

TEST_CASE("a loss that jumps is a spike once, and falling or noisy losses are none") {
  SpikeWatch watch;
  for (int i = 0; i < 200; ++i) {
    INFO(i);
    CHECK_FALSE(watch.add(2 + 5 * std::exp(-i / 40.0) + 0.05 * (i % 3)));
  }
  const auto usual = watch.add(9);
  REQUIRE(usual);
  CHECK(*usual == Approx(2.1).margin(0.1));
  CHECK_FALSE(watch.add(9));  // still the same straggler
  CHECK_FALSE(watch.add(2.1));
  CHECK(watch.add(9));
  CHECK_FALSE(watch.add(std::nan("")));
  CHECK_FALSE(watch.add(0.01));
}

TEST_CASE("the first losses of a run are no spikes") {
  SpikeWatch watch;
  for (const double loss : {1.0, 1.0, 1.0, 50.0, 1.0}) CHECK_FALSE(watch.add(loss));
}

TEST_CASE("a rank straggles when it is slow ten steps in a row") {
  StragglerWatch watch;
  const std::vector<double> even{0.1, 0.11, 0.1, 0.12}, slow{0.1, 0.11, 0.2, 0.1};
  for (int i = 0; i < 30; ++i) CHECK_FALSE(watch.add(even));
  for (int i = 0; i < 9; ++i) CHECK_FALSE(watch.add(slow));
  CHECK_FALSE(watch.add(even));
  for (int i = 0; i < 9; ++i) CHECK_FALSE(watch.add(slow));
  const auto straggler = watch.add(slow);
  REQUIRE(straggler);
  CHECK(straggler->rank == 2);
  CHECK(straggler->ratio == Approx(0.2 / 0.1));
  for (int i = 0; i < 30; ++i) CHECK_FALSE(watch.add(slow));
  const std::vector<double> short_steps{0.001, 0.001, 0.005};
  for (int i = 0; i < 30; ++i) CHECK_FALSE(watch.add(short_steps));
}

TEST_CASE("of two ranks the slower one straggles") {
  StragglerWatch watch;
  const std::vector<double> steps{0.1, 0.2};
  for (int i = 0; i < 9; ++i) CHECK_FALSE(watch.add(steps));
  const auto straggler = watch.add(steps);
  REQUIRE(straggler);
  CHECK(straggler->rank == 1);
  CHECK(straggler->ratio == Approx(2));
}
