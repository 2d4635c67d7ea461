// SPDX-License-Identifier: MIT
#include "lib/data/supervised_share.h"

#include "tests/support/test.hpp"

using namespace tessera;

namespace {

// 3, 1 and 0 of 4 tokens are targets.
const std::vector<Example> kRows{{{5, 6, 7, 8}, {5, 6, 7, 8}, {}},
                                 {{5, 6, 7, 8}, {-100, -100, -100, 8}, {}},
                                 {{5, 6, 7, 8}, {5, -100, -100, -100}, {}}};

}  // namespace

TEST_CASE("the share of tokens that are targets: the first of a row is none") {
  const TokenTable table(Dataset{Task::kCausal, kRows, 0});
  CHECK(supervised_share(table) == Approx(4.0 / 12));
  CHECK(supervised_share(table.slice(1, 3)) == Approx(1.0 / 8));
  CHECK(supervised_share(TokenTable()) == 1);
  CHECK(supervised_share(Dataset{Task::kClassification, {{{5, 6}, {3}, {}}}, 4}) == 1);
}

TEST_CASE("rows of a large table are read from all of it") {
  Dataset dataset{Task::kCausal, {}, 0};
  for (int i = 0; i < 9'000; ++i) dataset.examples.push_back(kRows[i < 6'000 ? 0 : 2]);
  CHECK(supervised_share(dataset) == Approx(2.0 / 3 * 3 / 4).epsilon(0.01));
}
