// SPDX-License-Identifier: MIT
#include "lib/run/step_flops.h"

#include <ATen/ATen.h>

#include "tessera/models/language_model.h"
#include "tests/support/sized.h"
#include "tests/support/test.hpp"

using namespace tessera;
using namespace tessera::testing;
using tessera::testing::sized;
using namespace tessera::programs;

TEST_CASE("operations of a step: packed rows attend to themselves") {
  MicroBatch whole;
  whole.input_ids = at::zeros({2, 12}, at::kLong);
  MicroBatch packed = whole;
  packed.packed = make_packed_rows({3, 9, 6, 6}, 12);
  CHECK(mean_row_length({whole}) == 12);
  CHECK(mean_row_length({packed}) == Approx((9 + 81 + 36 + 36) / 24.0));
  CHECK(mean_row_length({whole, packed}) == Approx((2 * 144 + 162) / 48.0));
  CHECK(mean_row_length({}) == 0);
}

TEST_CASE("operations of a step: the head meets what is supervised") {
  const ModelSpec model =
      causal(sized("bloom", {.vocabulary = 1000, .hidden = 64, .heads = 4, .layers = 3}));
  constexpr double kLayer = 12.0 * 64 * 64, kHead = 1000.0 * 64;
  // Operations without a matrix are negligible.
  CHECK(step_flops(model, 100, 100, 32) ==
        Approx(100 * (6 * (3 * kLayer + kHead) + 6 * 3 * 64 * 32)).epsilon(0.02));
  CHECK(step_flops(model, 100, 100, 32) - step_flops(model, 100, 25, 32) ==
        Approx(75 * 6 * kHead).epsilon(0.01));
  CHECK(step_flops(model, 100, 100, 33) - step_flops(model, 100, 100, 32) == 100 * 6 * 3 * 64);
}
