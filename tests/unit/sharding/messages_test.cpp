// SPDX-License-Identifier: MIT
#include "lib/sharding/messages.h"

#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE("a block has a message of its own while the start outweighs the ring") {
  for (const int ranks : {1, 2, 4, 8}) CHECK(least_message_bytes(ranks) == 0);
  CHECK(least_message_bytes(9) > 0);
  CHECK(message_numel(/*asked=*/0, 8, 2) == 0);
}

TEST_CASE("beyond that a message takes as long for its bytes as for the ranks it goes round") {
  const CollectiveCost cost;
  for (const int ranks : {16, 64, 165, 1024}) {
    const auto bytes = static_cast<double>(least_message_bytes(ranks));
    CHECK(bytes / cost.bytes_per_us == Approx(20 + 2.4 * ranks));
  }
  // A block of bloom-560m has 25 MB: two per message at 64 ranks, five at 165.
  CHECK(least_message_bytes(64) / 25'000'000 == 1);
  CHECK(least_message_bytes(165) / 25'000'000 == 4);
  CHECK(message_numel(0, 64, 2) == least_message_bytes(64) / 2);
}

TEST_CASE("what is asked for counts at every number of ranks") {
  CHECK(message_numel(1000, 2, 4) == 250);
  CHECK(message_numel(1, 512, 2) == 0);
}

TEST_CASE("buckets hold at least a message") {
  ShardingRules rules;
  CHECK(bucket_bytes(100, rules, 4) == 100);
  rules.message_numel = 50;
  CHECK(bucket_bytes(100, rules, 4) == 200);
  CHECK(bucket_bytes(300, rules, 4) == 300);
}

TEST_CASE("units of one gather_group travel together, those that are apart alone") {
  std::vector<ParameterUnit> units(6);
  units[1].gather_group = units[2].gather_group = units[4].gather_group = 1;
  units[2].frozen = true;
  units[3].apart = true;
  units[5].gather_group = 2;
  const Messages messages(units);
  CHECK(messages.of_unit == std::vector<size_t>{0, 1, 1, 2, 1, 3});
  CHECK(messages.with(4) == std::vector<size_t>{1, 2, 4});
  CHECK(messages.trained == std::vector<size_t>{1, 2, 1, 1});
}
