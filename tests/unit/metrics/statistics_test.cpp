// SPDX-License-Identifier: MIT
#include "lib/metrics/statistics.h"

#include <random>
#include <vector>

#include "tests/support/test.hpp"

using namespace tessera::metrics;

TEST_CASE("distributions agree with NumPy") {
  // numpy: a = [4, 1, 7, 2, 10]; mean, median, std, percentile 90 and 99
  const std::vector<double> samples{4, 1, 7, 2, 10};
  const Distribution d = describe(samples);
  CHECK(d.mean == Approx(4.8));
  CHECK(d.median == Approx(4));
  CHECK(d.std == Approx(3.3105890714493698));
  CHECK(d.p90 == Approx(8.8));
  CHECK(d.p99 == Approx(9.88));
  CHECK(describe(std::vector<double>{}).p99 == 0);
  CHECK(describe(std::vector<double>{3}).p90 == 3);
}

TEST_CASE("a stream's distribution is that of its samples, exactly for thousands of them") {
  std::mt19937_64 random(1);
  const auto draw = [&] { return 1 + static_cast<double>(random() % 1000) / 1000; };
  for (const size_t count : {size_t{0}, size_t{1}, size_t{7}, size_t{11}, size_t{4106}}) {
    std::vector<double> all;
    Samples samples;
    for (size_t i = 0; i < count; ++i) {
      all.push_back(draw());
      samples.add(all.back());
    }
    CHECK(samples.count() == static_cast<int64_t>(count));
    for (const size_t left_out : {size_t{0}, size_t{1}, size_t{10}}) {
      const Distribution a = samples.describe(static_cast<int64_t>(left_out));
      const Distribution b = describe(std::span(all).subspan(std::min(left_out, count)));
      CHECK((a.mean == b.mean && a.median == b.median && a.std == b.std && a.p90 == b.p90 &&
             a.p99 == b.p99));
    }
  }
}

TEST_CASE("a stream without end keeps its mean and deviation, and percentiles within samples") {
  std::mt19937_64 random(2);
  std::vector<double> all;
  Samples samples;
  for (size_t i = 0; i < 100'000; ++i) {
    all.push_back(1 + static_cast<double>(random() % 100'000) / 100'000 + (i < 10 ? 50 : 0));
    samples.add(all.back());
  }
  for (const int64_t left_out : {0, 10}) {
    const Distribution a = samples.describe(left_out);
    const Distribution b = describe(std::span(all).subspan(static_cast<size_t>(left_out)));
    CHECK(a.mean == Approx(b.mean).epsilon(1e-12));
    CHECK(a.std == Approx(b.std).epsilon(1e-9));
    CHECK(a.median == Approx(b.median).margin(0.05));
    CHECK(a.p90 == Approx(b.p90).margin(0.03));
  }
  CHECK(samples.describe(10).p99 == Approx(1.99).margin(0.01));
}

TEST_CASE("warm-up is short in short runs and bounded in long ones") {
  CHECK(warmup_steps(0) == 0);
  CHECK(warmup_steps(1) == 0);
  CHECK(warmup_steps(2) == 1);
  CHECK(warmup_steps(20) == 4);
  CHECK(warmup_steps(1000) == 10);
}

TEST_CASE("MFU counts all devices") {
  const auto peak = peak_flops_per_second("NVIDIA H200", "bf16");
  REQUIRE(peak.has_value());
  CHECK(*peak == Approx(989.4e12));
  CHECK(peak_flops_per_second("NVIDIA H100 PCIe", "fp32") == 51e12);
  CHECK_FALSE(peak_flops_per_second("Some CPU", "fp32").has_value());
  CHECK(mfu_ratio(3e9, 50e3, 1e15, 2) == Approx(0.075));
}
