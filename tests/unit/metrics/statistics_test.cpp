#include "tessera/metrics/statistics.h"

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
