// SPDX-License-Identifier: MIT
#include "lib/core/host_threads.h"

#include <ATen/ATen.h>

#include <atomic>
#include <numeric>

#include "lib/core/host_memory.h"
#include "tessera/core/error.h"
#include "tests/support/test.hpp"

using namespace tessera;

TEST_CASE("a loop on host threads calls every index once, loop after loop") {
  for (const int threads : {1, 2, 5}) {
    HostThreads pool(threads, allowed_cores());
    CHECK(pool.size() == threads);
    for (const int64_t count : {0, 1, 3, 1000}) {
      std::vector<std::atomic<int>> calls(static_cast<size_t>(count));
      pool.run(count, [&](int64_t i) { ++calls[static_cast<size_t>(i)]; });
      for (const auto& number : calls) REQUIRE(number == 1);
    }
  }
}

TEST_CASE("what a host thread throws reaches the caller with its type, and the pool goes on") {
  HostThreads pool(3, {});
  for (int round = 0; round < 3; ++round) {
    try {
      pool.run(100, [](int64_t i) { check(i != 7, ErrorCode::kNumerics, "seven"); });
      FAIL("nothing was thrown");
    } catch (const Error& error) {
      CHECK(error.code() == ErrorCode::kNumerics);
    }
    std::atomic<int> calls = 0;
    pool.run(10, [&](int64_t) { ++calls; });
    CHECK(calls == 10);
  }
}

TEST_CASE("shares of cores cover them once; ranks beyond the cores share") {
  std::vector<int> cores(7);
  std::iota(cores.begin(), cores.end(), 3);
  std::vector<int> all;
  for (int i = 0; i < 3; ++i) {
    const auto share = share_of_cores(cores, i, 3);
    CHECK(share.size() >= 2);
    all.insert(all.end(), share.begin(), share.end());
  }
  CHECK(all == cores);
  CHECK(share_of_cores({4, 9}, 5, 8) == std::vector<int>{4, 9});
  CHECK(share_of_cores({}, 0, 2).empty());
}

TEST_CASE("host memory: zeros of the asked size, and a plausible amount available") {
  HostThreads pool(2, allowed_cores());
  const at::Tensor tensor = host_zeros(5'000'001, at::kBFloat16, /*pinned=*/false, pool);
  CHECK(tensor.numel() == 5'000'001);
  CHECK(tensor.scalar_type() == at::kBFloat16);
  CHECK_FALSE(tensor.any().item<bool>());
  CHECK(available_host_memory() > int64_t{1} << 24);
  CHECK(available_host_memory() < int64_t{1} << 50);
}
