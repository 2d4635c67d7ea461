#include "examples/common/theory.h"

#include "tests/support/test.hpp"

using namespace tessera::programs;

TEST_CASE("the formulas give the published figures") {
  // Rajbhandari et al. 2020, figure 1: 7.5e9 parameters, 16-bit training, 64 ranks:
  // 120, 31.4, 16.6, 1.9 GB.
  TheoryInput input{.ranks = 64,
                    .block_parameters = {{7'500'000'000}},
                    .parameter_dtype = "bf16",
                    .gradient_dtype = "bf16",
                    .reduce_dtype = "bf16"};
  auto gigabytes = [&](const char* strategy) {
    input.strategy = strategy;
    const Theory theory = theory_of(input);
    return (theory.parameter_bytes + theory.gradient_bytes + theory.optimizer_bytes) / 1e9;
  };
  CHECK(gigabytes("ddp") == Approx(120));
  CHECK(gigabytes("zero1") == Approx(31.4).epsilon(1e-2));
  CHECK(gigabytes("zero2") == Approx(16.6).epsilon(1e-2));
  CHECK(gigabytes("zero3") == Approx(1.9).epsilon(2e-2));
}

TEST_CASE("communication grows with the micro-batches where gradients are sharded") {
  TheoryInput input{
      .strategy = "ddp", .ranks = 4, .accumulation = 3, .block_parameters = {{1'000'000, 1000}}};
  const double parameters = 1'001'000, ring = 0.75;
  CHECK(theory_of(input).comm_bytes_per_step == Approx(8 * parameters * ring));
  input.strategy = "zero1";
  CHECK(theory_of(input).comm_bytes_per_step == Approx(8 * parameters * ring));
  input.strategy = "zero2";
  CHECK(theory_of(input).comm_bytes_per_step == Approx((3 * 4 + 4) * parameters * ring));
  input.reduce_at_boundary = true;
  CHECK(theory_of(input).comm_bytes_per_step == Approx(8 * parameters * ring));
  input.strategy = "zero3";  // one block: gathered once a step
  CHECK(theory_of(input).comm_bytes_per_step ==
        Approx((3 * 4 * parameters + 4 * 1'000'000 + 4 * 1000) * ring));
  input.block_parameters.assign(5, {1'000'000, 1000});  // five: two of each pass are still there
  CHECK(theory_of(input).comm_bytes_per_step ==
        Approx((3 * 4 * 5 * parameters + 4 * 1'000'000 * (5 + 5 * 3) + 4 * 5 * 1000) * ring));
  input.strategy = "single";
  input.ranks = 1;
  CHECK(theory_of(input).comm_bytes_per_step == 0);
}
