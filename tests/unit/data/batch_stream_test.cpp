// SPDX-License-Identifier: MIT
#include "tessera/data/batch_stream.h"

#include "tests/support/messages.hpp"
#include "tests/support/test.hpp"

using namespace tessera;

namespace {

TokenTable numbered(int32_t rows) {
  Dataset dataset;
  for (int32_t i = 0; i < rows; ++i) dataset.examples.push_back({{10 + i, i}, {10 + i, i}, {}});
  return dataset;
}

}  // namespace

TEST_CASE("a stream gives the loader's batches and states in order, whatever it has ahead") {
  const DataLoaderOptions options{.micro_batch_size = 2, .accumulation_steps = 2};
  for (const size_t ahead : {1, 2, 5}) {
    DataLoader loader(numbered(10), options);
    BatchStream stream(loader, at::kCPU, ahead);
    for (int step = 0; step < 9; ++step) {
      CHECK(stream.state() == loader.state());
      const auto expected = loader.next(), given = stream.next();
      REQUIRE(given.size() == 2);
      for (size_t i = 0; i < 2; ++i) {
        CHECK(given[i].input_ids.equal(expected[i].input_ids));
        CHECK(given[i].labels.equal(expected[i].labels));
        CHECK(given[i].target_count == expected[i].target_count);
      }
    }
    CHECK(stream.state() == loader.state());
  }
}

TEST_CASE("a stream begins where its loader is") {
  DataLoader loader(numbered(6), {.micro_batch_size = 2, .shuffle = false});
  loader.restore({1, 4});
  BatchStream stream(loader);
  CHECK(stream.next()[0].input_ids[0][0].item<int64_t>() == 14);
  CHECK(stream.state() == DataLoaderState{1, 6});
}

TEST_CASE("what the loader throws arrives at the caller, again and again") {
  BatchStream stream(DataLoader(numbered(2), {.pad_to = int64_t{1} << 50}));  // runs out of memory
  CHECK_THROWS(stream.next());
  CHECK_THROWS(stream.next());
}
