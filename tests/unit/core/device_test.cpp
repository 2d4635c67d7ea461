// SPDX-License-Identifier: MIT
#include "tessera/core/device.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <thread>
#include <vector>

#include "lib/core/device_reserve.h"
#include "tessera/core/error.h"
#include "tessera/core/log.h"
#include "tests/support/test.hpp"

namespace tessera {
namespace {

TEST_CASE("host tensors of a thread are counted, with their peak") {
  HostMemoryCounter counter;
  at::Tensor a = at::empty({1000});
  REQUIRE(counter.use().allocated_bytes == 4000);
  {
    at::Tensor b = at::empty({500}, at::kDouble);
    // Allocations of another thread are not counted.
    std::thread([] { at::empty({1 << 20}); }).join();
  }
  REQUIRE(counter.use().allocated_bytes == 4000);
  REQUIRE(counter.use().peak_allocated_bytes == 8000);
  REQUIRE(counter.use().allocations == 2);
  counter.reset_peak();
  a.reset();
  REQUIRE(counter.use().allocated_bytes == 0);
  REQUIRE(counter.use().peak_allocated_bytes == 4000);
}

TEST_CASE("streams and markers of the CPU do nothing and may be used as on a GPU") {
  const at::Device cpu = at::kCPU;
  const c10::Stream side = side_stream(cpu);
  {
    const StreamScope scope(side);
    Marker marker;
    marker.block(cpu);
    marker.record(cpu);
    marker.block(side);
    marker.synchronize();
    REQUIRE(marker.done());
  }
  set_current_device(cpu);
  synchronize_device(cpu);
  REQUIRE(device_name(cpu) == "CPU");
  REQUIRE_THROWS_AS(memory_use(cpu), Error);
}

// Lengths vary like those of texts; a step's memory is proportional to its tokens.
TEST_CASE("room for steps holds the largest of a hundred, also where the first one is small") {
  CHECK(reserve_for_steps(1000, 1792, 2880, 16) == 3214);
  CHECK(reserve_for_steps(1000, 2880, 1792, 16) == 2000);
  CHECK(reserve_for_steps(1000, 100, 100, 1) == 2500);
  std::mt19937_64 random(1);
  std::normal_distribution<double> normal;
  for (const int64_t rows : {8, 16, 64}) {
    constexpr int kRuns = 300;
    int held = 0;
    double rooms = 0;
    for (int run = 0; run < kRuns; ++run) {
      std::vector<int64_t> tokens(100);
      double all = 0;
      for (int64_t& step : tokens) {
        for (int64_t row = 0; row < rows; ++row) {
          step += std::lround(std::min(std::exp(4.9 + 0.8 * normal(random)), 512.0));
        }
        all += static_cast<double>(step) / 100;
      }
      const int64_t room = reserve_for_steps(1024 * tokens[0], tokens[0], tokens[1], rows);
      held += room >= 1024 * *std::ranges::max_element(tokens) ? 1 : 0;
      rooms += static_cast<double>(room) / 1024 / all / kRuns;
    }
    CAPTURE(rows, held, rooms);
    CHECK(held >= kRuns * 96 / 100);
    CHECK(rooms < 3);  // relative to a mean step
  }
}

TEST_CASE("the rank of a log belongs to its thread") {
  set_log_rank(3);
  int other = 7;
  std::thread([&] { other = log_rank(); }).join();
  REQUIRE(other == -1);
  REQUIRE(log_rank() == 3);
  set_log_rank(-1);
}

}  // namespace
}  // namespace tessera
